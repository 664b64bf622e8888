"""How many of the examples have to do what a strategy is for, where some are random."""

from __future__ import annotations


def least(share: float, drawn: int, settled: bool) -> float:
    """Of `drawn` examples, a `share`; three standard deviations of a fair coin less unless they are `settled`.

    No coin deviates more than a fair one. Settled examples are the same in each run. Of a handful of random ones
    nothing can be demanded without false alarms; the `ci` profile settles it.
    """
    return share * drawn - (0.0 if settled else 1.5 * drawn**0.5)
