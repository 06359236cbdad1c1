"""The command line: `psac --help`.

app     the commands, each a thin layer over the library
demo    the first ten minutes: three rules on one budget, and a report
view    what a person sees while a run trains
"""
