"""The stored cases: their format, where they lie, and the command that replays them."""
