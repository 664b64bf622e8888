"""Faults planted in copies of `tbe_kernels`, which the suite has to catch."""
