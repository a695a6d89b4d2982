"""YAML without surprises: 1e3 is a number, `no` is a word, and no key is silently lost.

PyYAML follows YAML 1.1, where `3.35e12` is text, `no` is False, `12:30` is 750, and the second of
two equal keys wins. A spec must not depend on any of that.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import InputError

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_DIGITS = 30

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Base):  # type: ignore[misc]
    """The YAML 1.2 core schema's bool, int, float and null, and nothing else."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (*(f"tag:yaml.org,2002:{kind}" for kind in ("null", "str", "seq")), None)
    }


_NUMBER_START = list("-+0123456789.")
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", _NUMBER_START),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", _NUMBER_START),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )


def _refuse(place: Any, what: str) -> InputError:
    return InputError(f"line {place.start_mark.line + 1}: {what}")


def _construct_int(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if re.fullmatch(r"[-+]?[0-9]+", text) is None:
        raise _refuse(node, f"'{text}' is not a whole number")
    if len(text) > MAX_DIGITS:
        raise _refuse(node, f"'{text}' has more than {MAX_DIGITS} digits")
    return int(text)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    try:
        value = float(text)
    except ValueError:
        raise _refuse(node, f"'{text}' is not a number") from None
    if not math.isfinite(value):
        raise _refuse(node, f"'{text}' is not finite")
    return value


def _construct_bool(loader: Any, node: yaml.ScalarNode) -> bool:
    text = loader.construct_scalar(node)
    if text.lower() not in ("true", "false"):
        raise _refuse(node, f"'{text}' is not true or false")
    return bool(text.lower() == "true")


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise _refuse(node, "expected keys and values")
    result: dict[Any, Any] = {}
    lines: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            raise InputError(f"line {line}: a key must be a word or a number")
        if key in lines:
            raise InputError(f"key '{key}' stands twice, on line {lines[key]} and on line {line}")
        lines[key] = line
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_StrictLoader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
_StrictLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def _expanded_size(node: yaml.Node, seen: dict[int, int], path: frozenset[int]) -> int:
    """Nodes the document has once every alias is written out."""
    key = id(node)
    if key in path:
        raise InputError("an alias contains itself")
    if key not in seen:
        inner = path | {key}
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [n for pair in node.value for n in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = list(node.value)
        seen[key] = 1 + sum(_expanded_size(child, seen, inner) for child in children)
    return seen[key]


def _deepest(text: str) -> int:
    """More levels than a text can nest: each opens with a bracket, or in a column of its own after
    what indents a line, where a list may stand below its key.
    """
    indent = max((len(line) - len(line.lstrip(" \t?:-\ufeff")) for line in text.splitlines()),
                 default=0)
    return text.count("[") + text.count("{") + 2 * (indent + 1)


def _check_depth(text: str) -> None:
    """Refuse deep nesting while it is still a flat stream of events: nothing recurses here."""
    if _deepest(text) <= MAX_DEPTH:
        return    # without reading the text twice
    depth = 0
    for event in yaml.parse(text, Loader=_StrictLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _refuse(event, f"nested more than {MAX_DEPTH} deep")


def _load_one(text: str) -> Any:
    _check_depth(text)
    loader = _StrictLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise InputError("the file is empty")
        many = "*" in text or len(text) > MAX_NODES    # else no alias and fewer characters
        if many and _expanded_size(node, {}, frozenset()) > MAX_NODES:
            raise InputError(f"holds more than {MAX_NODES:,} values once aliases are written out")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def load_yaml_text(text: str, name: str) -> Any:
    """The one document in `text`; `name` is the file named in messages."""
    try:
        return _load_one(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{name}: {line}not valid YAML: {problem}") from None


def read_spec_text(path: Path) -> str:
    """Text of a spec file; refuses files above 1 MB, folders, and files that are not UTF-8 text."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise InputError(f"{path}: is a folder, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path}: is not a regular file")
        if found.st_size > MAX_BYTES:
            raise InputError(f"{path}: {found.st_size:,} bytes, a spec has at most {MAX_BYTES:,}")
        if found.st_size == 0:
            raise InputError(f"{path}: the file is empty")
        text = path.read_text(encoding="utf-8")
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file (not UTF-8)") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}") from None
    if "\x00" in text:
        raise InputError(f"{path}: not a text file (binary content)")
    return text


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a spec file."""
    data = load_yaml_text(read_spec_text(path), str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: must hold keys and values, not {type(data).__name__}")
    return data
