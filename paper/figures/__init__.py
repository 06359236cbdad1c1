"""The figures of the paper, and pictures of its theory: one file each, listed in `catalogue`."""
