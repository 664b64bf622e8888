"""Speed alone: may be left out without changing a verdict."""
