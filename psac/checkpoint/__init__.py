"""A run on disk: checkpoints that survive a kill, and records of what was released since."""
