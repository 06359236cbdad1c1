"""What an operation adds to per-sample gradients: their norms and weighted sums.

In: inputs and output gradients of the operations that met parameters.  Out: squared norms for each
record, and weighted sums.  Imports precision and kernels.
"""
