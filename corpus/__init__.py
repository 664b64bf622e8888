"""The stored cases: their format, where they lie, and the commands that replay and show them."""
