"""`python -m paper`: figures and tables of the paper, reproduced."""

from paper.commands import main

if __name__ == "__main__":
    main()
