"""Table 2 of the paper: its rows, the runs that fill it, and the table that is written."""
