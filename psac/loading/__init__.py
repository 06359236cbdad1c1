"""Your data in Poisson-sampled batches: data sets, the loader, and the check of `collate_fn`."""
