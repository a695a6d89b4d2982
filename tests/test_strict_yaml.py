"""YAML whose every surprise is a one-line refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.specs import strict_yaml
from simulator.specs.strict_yaml import MAX_BYTES, MAX_DEPTH, load_yaml, load_yaml_text

Write = Callable[..., Path]


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_yaml(path)
    message = str(caught.value)
    assert message.isprintable(), message
    assert len(message) < 700
    return message


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(content: str | bytes, name: str = "spec.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


@pytest.mark.parametrize(("text", "value"), [
    ("3.35e12", 3.35e12), ("1e3", 1000.0), ("1.e3", 1000.0), ("-.5", -0.5), ("+5", 5),
    ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("y", "y"), ("No", "No"),
    ("12:30", "12:30"), ("1:30:00", "1:30:00"), ("1_000", "1_000"), ("010", 10),
    ("2020-01-01", "2020-01-01"), ("nan", "nan"), (".inf", ".inf"), ("=", "="), ("+", "+"),
    ("true", True), ("False", False), ("tRUE", "tRUE"), ("~", None), ("null", None), ("", None),
    ("2039 GB/s", "2039 GB/s"), ("'7'", "7"),
])  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    found = load_yaml_text(f"a: {text}", "f")["a"]
    assert found == value
    assert type(found) is type(value)


def test_merge_key_is_a_plain_key() -> None:
    assert load_yaml_text("<<: {a: 1}", "f") == {"<<": {"a": 1}}


def test_plain_alias_is_allowed(write: Write) -> None:
    assert load_yaml(write("a: &x [1]\nb: *x\n")) == {"a": [1], "b": [1]}


def test_byte_order_mark_and_windows_line_ends(write: Write) -> None:
    assert load_yaml(write(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")) == {"a": 1, "b": 2}


@pytest.mark.parametrize(("text", "lines"), [
    ("a: 1\nb: 2\na: 3\n", (1, 3)),
    ("a:\n  b: 1\n  c: 2\n  b: 3\n", (2, 4)),
    ("1: a\n1.0: b\n", (1, 2)),
])
def test_duplicate_key_names_both_lines(write: Write, text: str, lines: Any) -> None:
    message = refused(write(text))
    assert f"on line {lines[0]} and on line {lines[1]}" in message


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(("content", "part"), [
    ("", "empty"), ("   \n", "empty"), ("# only a comment\n", "empty"),
    ("[1, 2]", "not list"), ("3", "not int"), ("word", "not str"),
    ("a: 1\n---\nb: 2\n", "another document"),
    ("a: [1", "not valid YAML"), ("a: *nope", "not valid YAML"), ("a: 'open", "not valid YAML"),
    ("a:\n\t- 1", "not valid YAML"), ("%YAML 9.9\n---\na: 1", "not valid YAML"),
    ("a: !!python/object/apply:os.system [ls]", "not valid YAML"), ("a: !own x", "not valid YAML"),
    ("a: !!set {x, y}", "not valid YAML"), ("a: !!binary aGk=", "not valid YAML"),
    ("a: !!timestamp nope", "not valid YAML"),
    ("a: !!int x", "not a whole number"), ("a: !!float x", "not a number"),
    ("a: !!bool maybe", "not true or false"), ("a: !!map [1]", "keys and values"),
    ("a: !!float nan", "not finite"), ("a: 1e400", "line 1: '1e400' is not finite"),
    pytest.param("a: " + "9" * 5000, "digits", id="5000"),
    pytest.param("a: " + "9" * 400, "digits", id="400"),
    ("? [1, 2]\n: 3", "line 1: a key must be"), ("? {a: 1}\n: 3", "line 1: a key must be"),
    ('"a\\nb": 1\n"a\\nb": 2', "stands twice"),
    ("a: &x [*x]", "contains itself"), ("a: &x {b: *x}", "contains itself"),
    pytest.param(BOMB, "aliases", id="bomb"),
    pytest.param("a: [" + "1," * 120_000 + "]", "values", id="many"),
    (b"a: \xff\xfe", "not UTF-8"), ("a: 1".encode("utf-16"), "not UTF-8"),
    (b"a: \x00", "binary"), (b"GGUF\x03\x00\x00\x00", "binary"), (b"a: \x07", "not valid YAML"),
    pytest.param(b"a: 1\n#" + b"x" * MAX_BYTES, "at most 1,000,000", id="big"),
])  # fmt: skip
def test_refused(write: Write, content: Any, part: str) -> None:
    path = write(content)
    message = refused(path)
    assert message.startswith(f"{path}: ")
    assert part in message


@pytest.mark.parametrize("text", [
    "a: " + "[" * 100_000,
    "a: " + "[" * 100_000 + "]" * 100_000,
    "a: " + "{a: " * 100_000,
    "- " * 100_000,
    "? " * 100_000,
    "".join(" " * i + "a:\n" for i in range(1000)),
    "a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH,
], ids=["open lists", "lists", "mappings", "dashes", "keys", "indents", "limit"])
def test_deep_nesting(write: Write, text: str) -> None:
    assert "nest" in refused(write(text))


PIECES = st.sampled_from(["- ", "? ", ": ", "a: ", "{", "[", "}", "]", "&x ", "!!map ", "'q' ",
                          "--- ", "  ", "\t", "\n", "\r", "\u2028", "\ufeff"])


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_text_nests_deeper_than_its_bound(text: str) -> None:
    depths = [0]
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text):
            depths.append(depths[-1] + isinstance(event, yaml.CollectionStartEvent)
                          - isinstance(event, yaml.CollectionEndEvent))
    assert max(depths) <= strict_yaml._deepest(text)


def test_some_nesting_is_fine(write: Write) -> None:
    assert load_yaml(write("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)))


def test_paths(tmp_path: Path, write: Write) -> None:
    assert "folder" in refused(tmp_path)
    assert "No such file" in refused(tmp_path / "missing.yaml")
    assert "cannot be read" in refused(Path("a" * 5000))
    assert "cannot be read" in refused(Path("a\0b"))
    assert "\\n" in refused(write("a: [", "two\nlines.yaml"))
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(write: Write) -> None:
    path = write("a: 1")
    path.chmod(0)
    assert "cannot be read" in refused(path)


def refusal(text: str) -> str:
    try:
        load_yaml_text(text, "f")
    except InputError as error:
        return str(error)
    return ""


@given(st.text())
def test_any_text_loads_or_is_refused_in_one_line(text: str) -> None:
    message = refusal(text)
    assert message == "" or (message.startswith("f: ") and message.isprintable())


@given(st.text(alphabet="[]{}:,-?&*!|>#'\"%ab1. \n~<=", max_size=40))
def test_any_punctuation_loads_or_is_refused_in_one_line(text: str) -> None:
    assert refusal(text).isprintable()


TEXTS = st.text(st.characters(max_codepoint=0xFFFD, exclude_categories=["Cs"]))
KEYS = st.text(st.characters(max_codepoint=0xFFFD, exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS


@given(st.dictionaries(KEYS, SCALARS | st.lists(SCALARS), max_size=5))
def test_json_is_read_back(data: Any) -> None:
    import json

    assert load_yaml_text(json.dumps(data, ensure_ascii=True), "f") == data
