"""Which settings the ahead-of-time gate compiles: pairs meet, and nothing that a user can choose is on no axis."""

from __future__ import annotations

import inspect
import itertools

from hypothesis import given
from hypothesis import strategies as st

from tbe_kernels import TableBatchedEmbeddingBags
from tbe_kernels.aot.variants import AXES, POINTERS, SMALL, TARGETS, Variants, pairwise
from tbe_kernels.config import KNOBS
from tbe_kernels.optimizers import OPTIMIZERS

#: The module's arguments by what they do to compiled code. A new one needs an axis, or a reason.
ON_AXES = {"embedding_specs", "pooling_mode", "weights_precision", "output_dtype", "bounds_check_mode", "optimizer"}
ON_AXES |= {"weight_decay_mode", "config", "max_norm", "stochastic_rounding", "gradient_clipping"}
NUMBERS = {"learning_rate", "eps", "weight_decay", "beta1", "beta2", "eta", "momentum", "rounding_seed"}
NUMBERS |= {"max_gradient"}
NOT_SEEN_BY_KERNELS = {"self", "device", "feature_table_map"}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=7))
def test_every_two_values_of_two_menus_meet(sizes: list[int]) -> None:
    menus = [[(column, value) for value in range(size)] for column, size in enumerate(sizes)]
    rows = pairwise(menus)
    for i, j in itertools.combinations(range(len(menus)), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(menus[i], menus[j]))
    assert all(value in menu for row in rows for value, menu in zip(row, menus, strict=True))


def test_pairwise_is_much_less_than_all() -> None:
    assert len(pairwise([range(5), range(4), range(4), *[range(3)] * 5])) <= 25  # of 19440; at least 20


def test_a_small_space_is_taken_whole() -> None:
    small = Variants(axes=("offsets", "block"))
    assert len(small.settings("sm_80")) == small.space() == 8 <= SMALL
    large = Variants(axes=("weights", "output", "indices", "offsets"))
    assert len(large.settings("sm_80")) < large.space()


def test_the_target_is_an_axis_of_a_very_large_space() -> None:
    axes = ("optimizer", "D", "weights", "stochastic_rounding", POINTERS)
    variants = Variants(axes=axes[:-1])
    settings = {target: variants.settings(target) for target in TARGETS}
    for one, other in itertools.combinations(axes, 2):
        met = {(setting[one], setting[other]) for each in settings.values() for setting in each}
        assert met == set(itertools.product(variants.menus()[one], variants.menus()[other]))
    for target, axis in itertools.product(TARGETS, axes):
        assert {setting[axis] for setting in settings[target]} == set(variants.menus()[axis])


def test_settings_keep_to_the_values_that_launch_the_kernel() -> None:
    variants = Variants(axes=("lookups", "weights", "output"), only={"lookups": ("MEAN",)})
    assert {setting["lookups"] for setting in variants.settings("sm_90")} == {"MEAN"}
    assert {setting["D"] for setting in variants.settings("sm_90")} == {AXES["D"][0]}


def test_all_that_a_user_can_choose_is_on_an_axis() -> None:
    arguments = inspect.signature(TableBatchedEmbeddingBags.__init__).parameters.keys()
    assert arguments == ON_AXES | NUMBERS | NOT_SEEN_BY_KERNELS
    assert {knob for knob, row in KNOBS.items() if row.menu is not None and not row.moves_tiles} <= AXES.keys()
    assert {name for name, _ in AXES["optimizer"]} == {kind.name for kind in OPTIMIZERS}
    for axis in AXES.keys() & KNOBS.keys():
        assert set(AXES[axis]) <= set(KNOBS[axis].menu or ())
