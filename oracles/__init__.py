"""The judge and what it knows: the reference, derived bounds, guards, and the adapters of implementations."""

#: What is under test unless --impl says otherwise.
OURS = "oracles.adapters.kernels:IMPLEMENTATION"
