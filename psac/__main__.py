"""`python -m psac` is `psac`."""

from psac.app.cli.app import main

if __name__ == "__main__":
    main()
