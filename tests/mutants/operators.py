"""Mutation operators for kernels: each takes a piece of a syntax tree and says what else could stand in its place.

They know the faults of this field: a mask that lost a term, a bound off by one, a tail that nobody takes, a sum kept in
a narrow type, the wrong offset, an atomic that orders nothing. A new kernel gets its mutants from here, without anybody
writing them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

#: What takes the place of the node.
Changes = Iterator[ast.AST]
Operator = Callable[[Any], Changes]

_BOUNDARY: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
_ACCESS = ("load", "store", "atomic_add", "atomic_max", "atomic_min")
_WIDE = ("tl.float32", "tl.float64", "ACCUMULATOR")
#: Names that stand for each other by mistake.
_CONFUSED = (
    ("first", "last"),
    ("start", "end"),
    ("weights_offsets", "hash_size_cumsum"),
    ("key_base", "hash_size_cumsum"),
    ("momentum1", "momentum2"),
    ("feature", "place"),
    ("row", "run"),
    ("D", "BLOCK_D"),
    ("total_D", "D"),
    ("owner", "chunk"),
    ("bag", "feature"),
)


def called(node: Any) -> str:
    """The last name of what a call calls, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def changed(node: Any, **fields: Any) -> Any:
    """A copy with other fields."""
    new = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def boundary(node: Any) -> Changes:
    """`<` for `<=` and the like."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BOUNDARY:
        yield changed(node, ops=[_BOUNDARY[type(node.ops[0])]()])


def lost_term(node: Any) -> Changes:
    """One side of `a & b` or `a | b`: a mask wider or narrower than it has to be."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        yield node.left
        yield node.right


def no_mask(node: Any) -> Changes:
    """An access without its mask."""
    if called(node) in _ACCESS and any(k.arg == "mask" for k in node.keywords):
        yield changed(node, keywords=[k for k in node.keywords if k.arg not in ("mask", "other")])


def no_widening(node: Any) -> Changes:
    """`x` for `x.to(tl.float32)`: sums in the type of what is summed."""
    if called(node) == "to" and ast.unparse(node.args[0]) in _WIDE:
        yield node.func.value


def plain_add(node: Any) -> Changes:
    """A load, an addition and a store for an atomic addition whose result nobody reads."""
    call: Any = node.value if isinstance(node, ast.Expr) else None
    if called(call) == "atomic_add":
        pointer, value = map(ast.unparse, call.args[:2])
        masks = [ast.unparse(k.value) for k in call.keywords if k.arg == "mask"]
        mask = f", mask={masks[0]}" if masks else ""
        yield ast.parse(f"tl.store({pointer}, tl.load({pointer}{mask}) + {value}{mask})").body[0]


def weaker_order(node: Any) -> Changes:
    """An atomic that releases, acquires, or neither, in place of both."""
    if isinstance(node, ast.keyword) and node.arg == "sem" and getattr(node.value, "value", "") == "acq_rel":
        for sem in ("relaxed", "release", "acquire"):
            yield changed(node, value=ast.Constant(sem))


def lost_statement(node: Any) -> Changes:
    """Nothing for a store, an atomic or a barrier."""
    if isinstance(node, ast.Expr) and called(node.value):
        yield ast.Pass()


def lost_accumulation(node: Any) -> Changes:
    """`=` for `+=`: the last term for the sum; and no `*=` at all."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield ast.Assign([node.target], node.value, lineno=0)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
        yield ast.Pass()


def lost_tail(node: Any) -> Changes:
    """`a // c` for `(a + c - 1) // c`, `-(-a // c)` the same; a range that ends one early."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        above = node.left
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Sub) and isinstance(above.left, ast.BinOp):
            yield changed(node, left=above.left.left)
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.BinOp):
        inner = node.operand
        if isinstance(inner.op, ast.FloorDiv) and isinstance(inner.left, ast.UnaryOp):
            yield changed(inner, left=inner.left.operand)
    if called(node) == "range" and len(node.args) > 1:
        end = ast.BinOp(node.args[1], ast.Sub(), ast.Constant(1))
        yield changed(node, args=[node.args[0], end, *node.args[2:]])


def wrong_sign(node: Any) -> Changes:
    """`-` for `+` and the other way."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield changed(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())


def lost_one(node: Any) -> Changes:
    """`x` for `x + 1` and `x - 1`: the offset of the bag itself for that of the next."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))
    if is_sum and getattr(node.right, "value", None) == 1:
        yield node.left


def no_division(node: Any) -> Changes:
    """`a` for `a / b`."""
    if called(node) == "div_rn":
        yield node.args[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield node.left


def other_extreme(node: Any) -> Changes:
    """The maximum for the minimum, and for the sum."""
    swap = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "sum": "max"}
    if called(node) in swap and isinstance(node.func, ast.Attribute):
        yield changed(node, func=changed(node.func, attr=swap[called(node)]))


def other_branch(node: Any) -> Changes:
    """`tl.where` the other way round."""
    if called(node) == "where":
        condition, yes, no = node.args
        yield changed(node, args=[condition, no, yes])


def negated(node: Any) -> Changes:
    """An `if` that asks for the opposite."""
    if isinstance(node, ast.If):
        yield changed(node, test=ast.UnaryOp(ast.Not(), node.test), body=node.body)


def confused(node: Any) -> Changes:
    """A name for another one that is as likely there."""
    for one, other in (*_CONFUSED, *((b, a) for a, b in _CONFUSED)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == one:
            yield changed(node, id=other)
        if isinstance(node, ast.Attribute) and node.attr == one and isinstance(node.value, ast.Name):
            yield changed(node, attr=other)


def flag(node: Any) -> Changes:
    """The other value of a switch, such as `stable=True`."""
    value = getattr(node.value, "value", None) if isinstance(node, ast.keyword) else None
    if isinstance(value, bool):
        yield changed(node, value=ast.Constant(not value))


IN_KERNELS: tuple[Operator, ...] = (
    boundary,
    lost_term,
    no_mask,
    no_widening,
    plain_add,
    weaker_order,
    lost_statement,
    lost_accumulation,
    lost_tail,
    wrong_sign,
    lost_one,
    no_division,
    other_extreme,
    other_branch,
    negated,
    confused,
)
#: On the host, where planning is done with tensors.
ON_THE_HOST: tuple[Operator, ...] = (boundary, lost_tail, lost_one, wrong_sign, flag, lost_term)
