"""The command line: `psac --help`.

app       the commands in one table, and what becomes of errors
console   where they write
view      what a person sees while a run trains

Each command has the file of its name; `calibrate` and `epsilon` share budget.
"""
