"""The loss function of one record under `torch.vmap`, with per-sample gradients of its parameters.

In: the function and a batch.  Out: an `Evaluation`.  Imports rules, contributions and isolation.
"""
