"""Forward kernels, one file a route: the bounds check and the pooled lookup."""
