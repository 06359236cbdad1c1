"""From a record's norm to its weight, so that no record counts more than the bound."""
