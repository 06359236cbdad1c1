"""The command line: `psac --help`.

app             all commands in one table
recipe_options  every setting of a recipe as an option; options, how a command gets them
completion      the names that the shell completes
console         where commands write; error_messages, how errors and warnings are shown
progress        figures of a run that trains; views, how they are displayed
several_runs    the same for several runs at a time, and what they cost together

Each command has a file of its name.  `calibrate` and `epsilon` are in pricing, with plan_options,
epsilon_curve and sampling_comparison.
"""
