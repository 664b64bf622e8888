"""Hypothesis strategies that draw `Case`s as production sends them, and aim them at every constant of the routing."""
