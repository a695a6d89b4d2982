"""`--where "fits and tpot_s < 0.05"`: a condition on the columns of a sweep, without `eval`.

The text is parsed as a Python expression, of which comparisons, `and`, `or`, `not`, arithmetic,
numbers, texts and column names are allowed. It is worked out on whole columns.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from simulator.errors import InputError, nearest

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
    ast.Pow: np.power, ast.Mod: np.mod, ast.FloorDiv: np.floor_divide,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.Eq: np.equal, ast.NotEq: np.not_equal,
}
_LONGEST = 10_000
_DEEPEST = 100


def _fail(what: str) -> InputError:
    return InputError(f"--where: {what}")


@lru_cache(maxsize=32)
def parse_where(text: str) -> ast.expr:
    """The expression's tree; refuses everything that isn't a condition on columns."""
    if len(text) > _LONGEST:
        raise _fail(f"the condition is longer than {_LONGEST:,} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _fail(f"'{text}' is not a condition ({getattr(error, 'msg', None) or error}); "
                    "write for example 'fits and tpot_s < 0.05'") from None
    _check(tree, text, 0)
    return tree


def _check(node: ast.expr, text: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise _fail(f"nested more than {_DEEPEST} deep")
    if isinstance(node, ast.BoolOp):
        children = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.UAdd):
        children = [node.operand]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        children = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        children = [node.left, *node.comparators]
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
                    raise _fail(f"'{ast.unparse(node)}': write for example hardware in "
                                "('a100', 'h100')")
                children = [c for c in children if c is not right] + right.elts
            elif type(op) not in _COMPARISONS:
                raise _fail(f"'{ast.unparse(node)}': use <, <=, >, >=, ==, != or in")
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
        if isinstance(node.value, int) and abs(node.value) > 2**63:
            raise _fail(f"'{ast.unparse(node)[:40]}' is too large a number")
        children = []
    elif isinstance(node, ast.Name | ast.Attribute):
        _name(node)
        children = []
    else:
        raise _fail(f"'{ast.unparse(node)}' is not allowed; use column names, numbers, texts, "
                    "comparisons, and, or, not, + - * / %")
    for child in children:
        _check(child, text, depth + 1)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    raise _fail(f"'{ast.unparse(node)}' is not a column")


def names_in(text: str) -> list[str]:
    """Columns that a condition names, once each."""
    found: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            found[_name(node)] = None
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(parse_where(text))
    return list(found)


def check_where(text: str, known: Iterable[str]) -> None:
    """Refuse a condition that can't be parsed or names a column that doesn't exist."""
    columns = list(known)
    for name in names_in(text):
        if name not in columns:
            raise _fail(f"unknown column '{name}'{nearest(name, columns)}")


def evaluate_where(text: str, column: Callable[[str], Any]) -> Any:
    """The condition as booleans; `column` gives the values of a name (arrays that broadcast)."""
    with np.errstate(all="ignore"):
        return _truth(_value(parse_where(text), column), text)


def _truth(value: Any, text: str) -> Any:
    if _is_text(value):
        raise _fail(f"'{text}': a text is neither true nor false, compare it with ==")
    values = np.asarray(value)
    # NaN (nothing to say) is not true.
    return values if values.dtype == bool else (values != 0) & ~np.isnan(values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "words")


def _same(left: Any, right: Any, node: ast.expr) -> Any:
    """left == right, for numbers, texts and text columns."""
    if not _is_text(left) and not _is_text(right):
        return np.equal(left, right)
    if isinstance(left, str) and not isinstance(right, str):
        left, right = right, left
    if isinstance(left, str):
        return np.bool_(left == right)
    if not _is_text(left) or not _is_text(right):
        raise _fail(f"'{ast.unparse(node)}' compares a text with a number")
    return left.equals(right)


def _compare(op: ast.cmpop, left: Any, right: Any, node: ast.expr) -> Any:
    if isinstance(op, ast.In | ast.NotIn):
        inside: Any = np.bool_(False)
        for choice in right:
            inside = inside | _same(left, choice, node)
        return ~inside if isinstance(op, ast.NotIn) else inside
    if isinstance(op, ast.Eq):
        return _same(left, right, node)
    if isinstance(op, ast.NotEq):
        return ~np.asarray(_same(left, right, node))
    if _is_text(left) or _is_text(right):
        raise _fail(f"'{ast.unparse(node)}': a text has no order, use == or !=")
    return _COMPARISONS[type(op)](left, right)


def _value(node: ast.expr, column: Callable[[str], Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        return column(_name(node))
    if isinstance(node, ast.Tuple | ast.List):
        return [_value(e, column) for e in node.elts]
    if isinstance(node, ast.BoolOp):
        parts = [_truth(_value(v, column), ast.unparse(v)) for v in node.values]
        result = parts[0]
        for part in parts[1:]:
            result = result & part if isinstance(node.op, ast.And) else result | part
        return result
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, column)
        if isinstance(node.op, ast.Not):
            return ~_truth(inner, ast.unparse(node.operand))
        return _arithmetic(node, inner, -1.0 if isinstance(node.op, ast.USub) else 1.0,
                           np.multiply)
    if isinstance(node, ast.BinOp):
        return _arithmetic(node, _value(node.left, column), _value(node.right, column),
                           _ARITHMETIC[type(node.op)])
    assert isinstance(node, ast.Compare)
    result, left = np.bool_(True), _value(node.left, column)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _value(comparator, column)
        result = result & _compare(op, left, right, node)
        left = right
    return result


def _arithmetic(node: ast.expr, left: Any, right: Any, apply: Callable[[Any, Any], Any]) -> Any:
    if _is_text(left) or _is_text(right):
        raise _fail(f"'{ast.unparse(node)}': no arithmetic on texts")
    return apply(np.asarray(left, dtype=float), np.asarray(right, dtype=float))
