"""Tables and the features that map to them: mixed widths, shared and unused tables, tables of one row."""

from __future__ import annotations

from hypothesis import strategies as st

from corpus.case import Table

#: Widths around powers of two, vector widths and warps. Small ones first: they cost least.
DIMS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 256)
WIDE_DIMS = (1024, 1025, 2048, 2049)
ROWS = (2, 1, 3, 5, 8, 20, 100, 1000)
#: Every row of a table is compared bit by bit after every step, so wide tables get few rows.
MOST_ELEMENTS = 2**14
#: Tables that a program can hold. Few rows and columns first.
SMALL_ROWS = (2, 1, 3, 5, 16, 17, 33, 63, 64)
SMALL_DIMS = (1, 2, 3, 5, 15, 16, 17, 64, 65, 127, 128)
#: The widest alignment that kernels are told of, in elements.
EVEN = 16
#: Feature counts around the widths that packed fields are made of.
MANY_FEATURES = (31, 32, 33, 64, 65, 128, 129)


@st.composite
def table_sets(
    draw: st.DrawFn, *, one_dim: bool = False, small: tuple[int, int] | None = None
) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    """(tables, feature_table_map): usually up to 3 tables and 4 features; sometimes one wide row, or many features.
    `one_dim`: all tables that a feature uses are as wide as the first of them. `small`: one feature, its table of so
    many rows and columns at most, others unused."""
    if small is not None:
        return draw(_one_small_table(*small))
    tables, features = draw(_table_sets())
    if one_dim:
        dim = tables[features[0]].dim
        same = [Table(min(t.rows, max(1, MOST_ELEMENTS // dim)), dim) for t in tables]
        tables = tuple(same[t] if t in features else table for t, table in enumerate(tables))
    return tables, features


@st.composite
def _one_small_table(draw: st.DrawFn, most_rows: int, most_columns: int) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    rows = draw(st.sampled_from([n for n in SMALL_ROWS if n <= most_rows]))
    table = Table(rows, draw(st.sampled_from([n for n in SMALL_DIMS if n <= most_columns])))
    other = Table(3, draw(st.sampled_from((1, 7, 200))))
    return draw(st.sampled_from((((table,), (0,)), ((table, other), (0,)), ((other, table), (1,)))))


@st.composite
def _even_rows(draw: st.DrawFn) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    """Tables whose widths add up to a multiple of `EVEN`, the first and widest as even: its rows are aligned in a plain
    batch, and not in a variable one, where other features lie in between."""
    odd = draw(st.lists(st.sampled_from((1, 2, 3, 6, 10)), min_size=1, max_size=2))
    dims = [draw(st.sampled_from((32, 64))), *odd, EVEN - sum(odd) % EVEN]
    rest = draw(st.permutations(range(1, len(dims))))
    return tuple(Table(draw(st.sampled_from((2, 3, 5))), dim) for dim in dims), (0, *rest)


@st.composite
def _table_sets(draw: st.DrawFn) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    kind = draw(st.sampled_from(("few",) * 14 + ("even",) * 3 + ("wide", "wide", "many")))
    if kind == "many":
        count = draw(st.sampled_from(MANY_FEATURES))
        tables = tuple(Table(draw(st.integers(1, 3)), draw(st.sampled_from((1, 2, 5)))) for _ in range(2))
        pattern = draw(st.lists(st.integers(0, 1), min_size=2, max_size=5))
        return tables, tuple(pattern[f % len(pattern)] for f in range(count))
    if kind == "wide":
        wide = Table(draw(st.sampled_from((2, 1, 5))), draw(st.sampled_from(WIDE_DIMS)))
        narrow = Table(3, draw(st.sampled_from(DIMS)))
        return draw(st.sampled_from((((wide,), (0,)), ((narrow, wide), (1, 0)), ((wide, narrow), (0, 1)))))
    if kind == "even":
        return draw(_even_rows())
    number = draw(st.integers(1, 3))
    dims = draw(st.lists(st.sampled_from(DIMS), min_size=number, max_size=number))
    if draw(st.booleans()):
        dims = [dims[0]] * number
    tables = tuple(Table(draw(st.sampled_from([r for r in ROWS if r * dim <= MOST_ELEMENTS])), dim) for dim in dims)
    # Any map: shared tables, unused tables, any order.
    features = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=4))
    return tables, tuple(features)
