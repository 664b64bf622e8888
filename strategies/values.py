"""Values: exact mode with as many bits as the proof of exactness leaves room for, general mode, edges of roundings."""

from __future__ import annotations

from hypothesis import strategies as st

from corpus.case import Batch, Optimizer, Sampled, Table, Values, bag_length, expand
from corpus.optimizers import KINDS, NORMS

#: Partial sums of integers below 2 ** 24 are exact in fp32.
BITS = 24
PSW_BITS = 2
MODES = ("exact", "exact", "exact", "general", "general", "edges")
NARROWED = ("exact", "exact", "general", "edges", "edges", "edges")


def exact_bits(
    tables: tuple[Table, ...], features: tuple[int, ...], batches: tuple[Batch, ...], optimizer: Optimizer, mean: bool
) -> tuple[int, int]:
    """(weight bits, gradient bits) for which every sum of the case stays within 24 bits, as far as there are any.

    Per-sample weights are halves of up to `PSW_BITS` bits and cost one more. For MEAN the gradient is multiplied by the
    bag's count. Row-wise squares and norms need twice the bits of a row's gradient, or of its weights.
    """
    longest_bag = longest_run = 1
    for batch in batches:
        for table in set(features):
            runs: dict[int, int] = {}
            for f, bags in enumerate(batch.features):
                if isinstance(bags, Sampled):  # the hottest row may take every lookup
                    longest_bag = max(longest_bag, 2 * bags.mean_length)
                    longest_run = max(longest_run, bags.samples * bags.mean_length)
                for one in () if isinstance(bags, Sampled) else bags:
                    longest_bag = max(longest_bag, bag_length(one))
                    for i in expand(one) if features[f] == table else ():
                        runs[i] = runs.get(i, 0) + 1
            longest_run = max(longest_run, *runs.values(), 1)
    psw = PSW_BITS + 1 if any(b.psw != "none" for b in batches) else 0
    widest = max(tables[t].dim for t in features).bit_length()
    bag, run = longest_bag.bit_length(), longest_run.bit_length()
    weight_bits = min(7, BITS - bag - psw)
    if KINDS[optimizer.name].columns == NORMS:
        weight_bits = min(weight_bits, (BITS - widest) // 2)
    grad_bits = min(5, BITS - run - psw - bag * mean, BITS - widest - weight_bits)
    if not KINDS[optimizer.name].linear:
        grad_bits = min(grad_bits, (BITS - widest) // 2 - run - psw - bag * mean)
    return max(1, weight_bits), max(1, grad_bits)


def _specials_among_weights(batches: tuple[Batch, ...]) -> tuple[bool, ...]:
    """Whether there may be specials: above all where they mean nothing, at lookups that are pruned."""
    bags = [bag for b in batches if b.psw != "none" for f in b.features if not isinstance(f, Sampled) for bag in f]
    if any(i < 0 for bag in bags for i in expand(bag)):
        return (False, True)
    return (False,) * 7 + (True,) if bags else (False,)


@st.composite
def values(
    draw: st.DrawFn,
    *,
    tables: tuple[Table, ...],
    features: tuple[int, ...],
    batches: tuple[Batch, ...],
    optimizer: Optimizer,
    mean: bool,
    products: bool = False,
    narrowed: bool = False,
) -> Values:
    """Exact every second time. `narrowed`: sums in fp64 go to a narrow output, which is to be rounded once. `products`:
    rows may be added up by a matrix product, which spreads an infinity or a NaN over what a sum keeps apart, and may
    lose small numbers beside large ones."""
    mode = draw(st.sampled_from(("exact", "general", "edges") if products else NARROWED if narrowed else MODES))
    seed = draw(st.integers(0, 2**16))
    # A norm of zero is a case of its own, and so is clipping an infinity or a NaN.
    one_in = 3 if products else 16 if optimizer.max_gradient is None else 4
    specials = draw(st.sampled_from((False,) * (one_in - 1) + (True,)))
    zero_rows = draw(st.sampled_from((False,) * (1 if KINDS[optimizer.name].columns == NORMS else 15) + (True,)))
    psw_specials = draw(st.sampled_from(_specials_among_weights(batches)))
    if mode == "edges":
        return Values(mode, seed, specials=specials, zero_rows=zero_rows, psw_specials=psw_specials)
    if mode == "general":
        spread = draw(st.sampled_from((24, 4, 12, 24) if products else (4, 1, 8, 12, 24)))
        return Values(mode, seed, spread=spread, specials=specials, zero_rows=zero_rows, psw_specials=psw_specials)
    weight_bits, grad_bits = exact_bits(tables, features, batches, optimizer, mean)
    return Values(
        *(mode, seed, weight_bits, grad_bits, PSW_BITS),
        specials=specials,
        zero_rows=zero_rows,
        psw_specials=psw_specials,
    )
