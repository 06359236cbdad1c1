"""`python -m paper`: figures and tables of the paper, made anew."""

from paper.cli.app import main

if __name__ == "__main__":
    main()
