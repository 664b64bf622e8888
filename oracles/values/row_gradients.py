"""What the optimizer NONE leaves instead of a step: by the reference, and how an implementation's compares with it."""

from __future__ import annotations

import torch
from torch import Tensor

from corpus.case import Case
from corpus.tensors import TableRows
from oracles.implementation import LeftRowGradients
from oracles.values.compare import Finding, Place, Sharpness, compare
from oracles.values.reference import ExpectedBackward, ExpectedRows

#: Rows that a finding names.
SHOWN = 8


def linear_rows(case: Case, tracked: tuple[TableRows, ...], expected: ExpectedBackward) -> list[Tensor]:
    """By table: the linear number of each touched row, that is, counted over the tables one after the other."""
    first, out = 0, []
    for table, some, rows in zip(case.tables, tracked, expected.tables, strict=True):
        out.append(first + (rows.touched if some.rows is None else some.rows[rows.touched]))
        first += table.rows
    return out


def left_by_reference(case: Case, tracked: tuple[TableRows, ...], expected: ExpectedBackward) -> LeftRowGradients:
    """The touched rows in order, and the middle of what their gradients may be."""
    rows = torch.cat(linear_rows(case, tracked, expected))
    gradients = torch.zeros(len(rows), max(t.dim for t in case.tables), dtype=torch.float32)
    start = 0
    for table in expected.tables:
        middle = table.gradients.lo + (table.gradients.hi - table.gradients.lo) / 2
        value = torch.where(table.gradients.is_point(), table.gradients.lo, middle).to(torch.float32)
        gradients[start : start + len(value), : value.shape[1]] = value
        start += len(value)
    return LeftRowGradients(rows, gradients, len(rows))


def compare_row_gradients(
    case: Case,
    tracked: tuple[TableRows, ...],
    expected: ExpectedBackward,
    left: LeftRowGradients | None,
    tally: Sharpness,
) -> list[Finding]:
    """Exactly the touched rows, each once in any order, with gradients that are allowed, and zeros beyond D."""
    if left is None:
        return [Finding("no row gradients were left, though the optimizer is NONE")]
    numbers = torch.cat(linear_rows(case, tracked, expected))
    most, widest = left.rows.numel(), max(t.dim for t in case.tables)
    if left.gradients.shape != (most, widest) or left.gradients.dtype != torch.float32:
        found = f"{tuple(left.gradients.shape)} {left.gradients.dtype}"
        return [Finding(f"row gradients are {found}, expected {(most, widest)} torch.float32")]
    if left.count != len(numbers) or most < left.count:
        return [Finding(f"row gradients: count = {left.count} of {most}, expected {len(numbers)}")]
    rows, order = torch.sort(left.rows[: left.count])
    if not torch.equal(rows, numbers):
        want, have = sorted(set(numbers.tolist()) - set(rows.tolist())), rows.tolist()
        return [
            Finding(f"row gradients are of rows {have[:SHOWN]}, without {want[:SHOWN]}, expected each touched once")
        ]
    gradients, findings, start = left.gradients[: left.count][order], [], 0
    for t, table in enumerate(expected.tables):
        part = gradients[start : start + len(table.touched)]
        start += len(table.touched)
        findings += _compare_table(t, table, tracked[t], part, tally)
    return findings


def _compare_table(t: int, table: ExpectedRows, tracked: TableRows, part: Tensor, tally: Sharpness) -> list[Finding]:
    D = table.gradients.lo.shape[1]
    if (part[:, D:] != 0).any():
        return [Finding(f"row gradients of table {t} are not zero beyond its D of {D}")]

    def place(at: Place) -> str:
        row = int(table.touched[at[0]])
        return f"row_gradients[t={t}][row {row if tracked.rows is None else int(tracked.rows[row])}, col {at[1]}]"

    return compare(f"row gradients of table {t}", table.gradients, part[:, :D], place, tally)
