"""A small engine whose kernels reach everything that a source key can hold, or ignore."""
