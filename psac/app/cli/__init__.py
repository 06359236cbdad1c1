"""The command line: `psac --help`.

app       the commands in one table
console   where they write
view      what a person sees while a run trains: live in a terminal, from the words in progress

Each command has the file of its name; `calibrate` and `epsilon` are in pricing, with the plan in
budget, the curve in curve and the comparison in schemes.  options and settings are what commands
share, names what the shell completes, mistakes what becomes of errors.
"""
