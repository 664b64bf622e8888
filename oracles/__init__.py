"""The judge and what it knows: the reference, derived bounds, guards, and the adapters of implementations."""
