"""Our way and the ways of peers on the same mutants, side by side, with the same CPU time for each mutant."""

from __future__ import annotations

from tests.mutants import ledger
from tests.mutants.bank import BY_HAND
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.peers import PEERS
from tests.mutants.score import UNAIMED, Outcome

#: CPU seconds for each mutant.
SECONDS = 2.0
AIMED, NOT_AIMED = "ours, on the paths of the changed file", "ours, on all paths in turn"


def ways() -> dict[str, dict[str, Outcome]]:
    """Of each way its outcomes, by mutant: those that all of them were measured on."""
    ways = {AIMED: ledger.stored(), NOT_AIMED: ledger.stored(UNAIMED)}
    ways |= {peer.name: ledger.stored(name) for name, peer in PEERS.items()}
    common = set.intersection(*(set(outcomes) for outcomes in ways.values())) - EQUIVALENT.keys()
    return {name: {m: outcomes[m] for m in sorted(common)} for name, outcomes in ways.items()}


def killed(outcome: Outcome) -> bool:
    """Killed in time. What takes us longer is alive here."""
    return outcome.status == "killed" and outcome.seconds <= SECONDS


def table() -> list[str]:
    """A line for each way, in Markdown."""
    measured = ways()
    kills = {name: {m for m, o in outcomes.items() if killed(o)} for name, outcomes in measured.items()}
    lines = [
        f"| way, {SECONDS:g} CPU seconds a mutant | killed | by hand | by no other side | CPU min | kills a CPU min |",
        "|---|---|---|---|---|---|",
    ]
    for name, outcomes in measured.items():
        ours = name in (AIMED, NOT_AIMED)
        others = set().union(*(seen for other, seen in kills.items() if (other in (AIMED, NOT_AIMED)) != ours))
        by_hand = [m for m, o in outcomes.items() if o.operator == BY_HAND]
        minutes, kill_count = sum(min(o.seconds, SECONDS) for o in outcomes.values()) / 60, len(kills[name])
        lines.append(
            f"| {name} | {kill_count} of {len(outcomes)} ({100 * kill_count / max(1, len(outcomes)):.1f} %) "
            f"| {len(kills[name] & set(by_hand))} of {len(by_hand)} | {len(kills[name] - others)} "
            f"| {minutes:.1f} | {kill_count / max(minutes, 1e-9):.1f} |"
        )
    return lines


def only_peers() -> list[str]:
    """What some peer kills in time and we do not: a line each."""
    measured = ways()
    ours = measured.pop(AIMED)
    del measured[NOT_AIMED]
    return [
        f"{m}: killed by {', '.join(name for name, outcomes in measured.items() if killed(outcomes[m]))}, "
        f"by us {ours[m].status} after {ours[m].seconds} s"
        for m in ours
        if not killed(ours[m]) and any(killed(outcomes[m]) for outcomes in measured.values())
    ]
