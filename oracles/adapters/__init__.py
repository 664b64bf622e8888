"""Implementations put under the suite, and all that has to know their insides."""
