"""A run folder -> a page that a person reads.

report       folders in, a page out
runs         what a folder holds; what of it may be published
head         the verdict in plain words
guarantee    what epsilon means for one record
card         everything that must be said for an epsilon to mean something
learning     curves of evaluations
mistakes     classes, confusions, examples
inside       losses, norms, weights, speed: not private
repeating    command, settings, versions
comparing    several runs side by side
statistics   repetitions and tests
rules        the clipping rule of a run
plots, axes, numerals, thumbnails, html, style    how it is drawn and written
"""

from psac.app.reporting.report import report
from psac.app.reporting.runs import NoRun

__all__ = ["report", "NoRun"]
