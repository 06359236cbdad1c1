"""Inner loops in C, compiled on the first use and compared with torch before they are used.

In: tensors that lie in memory as the loops need it.  Out: norms, sums, checksums.  Imports nothing
of the engine.  Where there is no compiler, the callers use torch operations.
"""
