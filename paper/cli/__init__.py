"""The commands of `python -m paper`."""
