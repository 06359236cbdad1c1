"""Functions of the whole batch: what each row of it adds to per-sample gradients."""
