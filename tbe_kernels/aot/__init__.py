"""Every kernel compiled ahead of time, for GPUs that are not here, and what has to hold of its code."""
