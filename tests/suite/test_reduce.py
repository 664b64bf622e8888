"""The reducer: it finds the least case that a fault allows, and never calls twice for the same case."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings

from corpus.case import Bag, Batch, Case, Optimizer, Sampled, Table, Values, bag_length, expand
from corpus.shrink.reduce import reduce
from strategies.cases import cases

BIG = Case(
    tables=(Table(100, 33), Table(7, 64), Table(20, 5)),
    feature_table_map=(1, 0, 2, 0),
    batches=(
        Batch((((1, 2), (3,)), ((9, 9, (44, 6)), (5,)), ((), (1,)), ((44,), ()))),
        Batch((((0,),), ((44, 44),), ((3,),), ((2,),)), psw="trained", grad_layout="sliced", learning_rate=0.125),
    ),
    order=(0, 1, 0, 1),
    optimizer=Optimizer("EXACT_ADAGRAD", 0.5, 1e-3),
    weights_dtype="float16",
    indices_dtype="int32",
    values=Values("general", 77, specials=True),
    routing={"chunk_size": 7, "long_run_threshold": 4},
)


def bags_of(case: Case) -> list[Bag]:
    """Every bag of the first batch."""
    return [bag for feature in case.batches[0].features if isinstance(feature, tuple) for bag in feature]


def lookups_of(case: Case, table: int) -> list[int]:
    """Every id that any batch looks up in a table."""
    return [
        i
        for batch in case.batches
        for f, bags in enumerate(batch.features)
        if case.feature_table_map[f] == table and isinstance(bags, tuple)
        for bag in bags
        for i in expand(bag)
    ]


def test_a_duplicate_reduces_to_one_bag_of_two_lookups() -> None:
    def has_duplicates(case: Case) -> bool:
        return any(len(set(ids)) < len(ids) for t in range(len(case.tables)) if (ids := lookups_of(case, t)))

    small = reduce(BIG, has_duplicates)
    assert [list(expand(bag)) for bag in bags_of(small) if bag] == [[0, 0]]
    assert (small.tables, len(small.batches), small.routing) == ((Table(1, 1),), 1, {})
    assert (small.optimizer, small.weights_dtype) == (Optimizer(), "float32")
    assert small.values == Values(weight_bits=1, grad_bits=1, psw_bits=1)


def test_what_matters_is_kept() -> None:
    def matters(case: Case) -> bool:
        return any(b.psw == "trained" and b.grad_layout == "sliced" for b in case.batches) and case.tables[-1].dim > 4

    small = reduce(BIG, matters)
    assert small.batches[0].psw == "trained"
    assert small.batches[0].grad_layout == "sliced"
    assert small.tables[-1].dim == 5


def test_no_check_of_bounds_is_plainer_than_any() -> None:
    fatal = dataclasses.replace(BIG, bounds_check_mode="FATAL")
    assert reduce(fatal, lambda case: True).bounds_check_mode == "NONE"
    assert reduce(fatal, lambda case: case.bounds_check_mode != "NONE").bounds_check_mode == "WARNING"


def test_a_repeat_shrinks_to_the_least_that_fails() -> None:
    long = Case((Table(3, 1),), (0,), (Batch((((0, (1, 500), 2),),)),), (0, 0))
    small = reduce(long, lambda c: max(map(lookups_of(c, 0).count, range(3)), default=0) >= 17)
    assert bag_length(bags_of(small)[0]) == 17


def test_sampled_features_shrink_too() -> None:
    large = Case((Table(9, 1),), (0,), (Batch((Sampled(1000, 40, 1.05),)),), (0, 0))
    small = reduce(large, lambda c: c.bag_starts(0)[1] >= 10)
    assert small.batches[0].features[0] == Sampled(15, 1, 1.05)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(case=cases())
def test_any_case_reduces_to_next_to_nothing_when_everything_fails(case: Case) -> None:
    seen: list[Case] = []

    def fails(candidate: Case) -> bool:
        assert candidate not in seen
        seen.append(candidate)
        return True

    small = reduce(case, fails)
    assert small.tables == (Table(1, 1),)
    assert sum(map(bag_length, bags_of(small))) == 0
