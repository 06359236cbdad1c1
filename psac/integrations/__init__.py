"""Private training inside the loops of other libraries; each needs its own extra."""
