"""Backward kernels: the plan that sorts a batch into runs, and one file for each way a run becomes a step."""
