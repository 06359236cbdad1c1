"""Tables 2 and 3 of the paper: rows, the runs that fill them, and the tables of results."""
