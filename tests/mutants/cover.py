"""A greedy set cover: few cases that together see everything that any of them sees."""

from __future__ import annotations

from collections.abc import Mapping


def cover(seen: Mapping[str, set[str]], sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Of each chosen case, what it was chosen for. `seen`: of each mutant, the cases that see it. `sizes`: of each
    case; always the one that adds most is taken, the smaller of two."""
    left = {mutant: cases for mutant, cases in seen.items() if cases}
    chosen: dict[str, list[str]] = {}
    while left:
        gain: dict[str, list[str]] = {}
        for mutant, cases in left.items():
            for case in cases:
                gain.setdefault(case, []).append(mutant)
        best = max(gain, key=lambda case: (len(gain[case]), -sizes[case], case))
        chosen[best] = gain[best]
        left = {mutant: cases for mutant, cases in left.items() if best not in cases}
    return chosen
