"""Training from the command line: data sets, networks, recipes, run folders and report pages.

What the library needs is in the rooms above; nothing there imports this one."""
