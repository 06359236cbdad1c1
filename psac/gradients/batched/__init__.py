"""A loss function that sees the whole batch and returns one loss per record: isolation is tested.

In: the function and a batch.  Out: an `Evaluation`.  Imports rules, contributions, isolation and
what it shares with `vectorized`.
"""
