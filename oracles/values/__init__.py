"""What the results may be: the reference, derived bounds, and the judge that compares with them."""
