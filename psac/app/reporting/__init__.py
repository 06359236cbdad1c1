"""A run folder becomes a page that people read.

report             folders in, a page out
snapshot           what a run folder holds
publishing         what of it may be published
head               the verdict in plain words
guarantee          what epsilon means for one record
privacy_card       everything that an epsilon needs to mean something
learning_curves    accuracy and loss over time
mistakes           classes, confusions, examples
diagnostics        losses, norms, weights, speed: not private
reproduction       command, settings, versions
comparison         several runs side by side; comparison_plots draws them
statistics         repetitions and tests
clipping_rule      the clipping rule of a run

plots, axes, numerals, thumbnails, html and style are how a page is drawn and written.
"""

from psac.app.reporting.report import report
from psac.app.reporting.snapshot import NoRun

__all__ = ["report", "NoRun"]
