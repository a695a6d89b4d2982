"""Names, aliases, paths and device prefixes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.specs import catalogue
from simulator.specs.catalogue import find, load_hardware, load_model, split_devices
from simulator.specs.hardware import Hardware
from simulator.specs.model import Model

CHIP = """name: {name}
aliases: {aliases}
memory_bandwidth: 1 TB/s
memory_capacity: 80 GB
peak_bf16: {peak} TFLOP/s
"""
MODEL = """name: tiny
aliases: [tiny-one]
hidden: 32
vocabulary: 100
positions: 128
layers:
  - {count: 2, mixer: {kind: attention, heads: 4, kv_heads: 4, head_dim: 8}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(catalogue.USER_FOLDER, str(tmp_path))
    (tmp_path / "hardware").mkdir()
    (tmp_path / "models").mkdir()
    add(tmp_path, "h100-sxm", aliases="[h100, 'H100 SXM5', \"h100_80\"]", peak=989)
    (tmp_path / "models" / "tiny.yaml").write_text(MODEL)
    return tmp_path


def add(home: Path, stem: str, aliases: str = "[]", peak: float = 1) -> Path:
    path = home / "hardware" / f"{stem}.yaml"
    path.write_text(CHIP.format(name=stem.lower(), aliases=aliases, peak=peak))
    return path


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


@pytest.mark.parametrize("name", [
    "h100-sxm", "H100-SXM", " h100_sxm ", "h100 sxm", "h100", "H100 SXM5", "h100-sxm5",
    "h100_80", "h100-80",
])  # fmt: skip
def test_hardware_names(home: Path, name: str) -> None:
    assert load_hardware(name).name == "h100-sxm"
    assert Hardware.load(name) is load_hardware(name)


def test_model_names(home: Path) -> None:
    assert load_model("tiny").name == "tiny"
    assert Model.load("Tiny_One") is load_model("tiny")
    assert load_model(str(home / "models" / "tiny.yaml")) == load_model("tiny")


def test_underscores_and_capitals_in_a_file_name(home: Path) -> None:
    add(home, "My_Chip")
    assert load_hardware("my_chip").name == "my_chip"
    assert load_hardware("My-Chip").name == "my_chip"
    assert "my_chip" in catalogue.catalogue("hardware")


def test_aliases_as_a_block_list(home: Path) -> None:
    add(home, "block", aliases="\n  - first-name\n  - 'second name'")
    assert load_hardware("first-name").name == "block"
    assert load_hardware("second-name").name == "block"


def test_a_file_added_later_is_found(home: Path) -> None:
    assert find("hardware", "later") is None
    path = add(home, "later")
    os.utime(path.parent, ns=(1, 1))
    assert load_hardware("later").name == "later"


def test_a_changed_file_is_read_again(home: Path) -> None:
    path = add(home, "changing", peak=1)
    assert load_hardware("changing").peak_bf16 == 1e12
    add(home, "changing", peak=2)
    os.utime(path, ns=(1, 1))
    assert load_hardware("changing").peak_bf16 == 2e12


def test_user_folder_wins(home: Path) -> None:
    shipped = next(n for n in catalogue.catalogue("hardware") if n != "h100-sxm")
    add(home, shipped, peak=7)
    os.utime(home / "hardware", ns=(2, 2))
    assert load_hardware(shipped).peak_bf16 == 7e12


def test_an_alias_never_hides_a_canonical_name(home: Path) -> None:
    add(home, "aa", aliases="[h100-sxm]")
    os.utime(home / "hardware", ns=(3, 3))
    assert load_hardware("h100-sxm").name == "h100-sxm"


def test_unreadable_neighbours_do_no_harm(home: Path) -> None:
    (home / "hardware" / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (home / "hardware" / "folder.yaml").mkdir()
    assert load_hardware("h100").name == "h100-sxm"
    assert "not UTF-8" in refused(load_hardware, "binary")
    assert "folder" in refused(load_hardware, "folder")


@pytest.mark.parametrize(("name", "part"), [
    ("h10", "did you mean 'h100'"),
    ("", "unknown hardware ''"),
    ("   ", "unknown hardware"),
    ("zzzzzzzz/none.yaml", "no such file"),
    ("none.yaml", "no such file"),
    ("/", "is a folder"),
    ("a\nb", "unknown hardware"),
    ("a\0b", "unknown hardware"),
    ("x/\0b", "no such file"),
    ("a" * 300, "unknown hardware"),
    ("b" * 100_000, "unknown hardware"),
    ("/" + "a" * 300, "no such file"),
], ids=range(12))
def test_unknown_hardware(home: Path, name: str, part: str) -> None:
    assert part in refused(load_hardware, name)


@pytest.mark.parametrize(("name", "part"), [
    ("tiiny", "did you mean 'tiny'"), ("", "unknown model ''"), ("none.gguf", "no such file"),
    ("x/y", "no such file"), ("a" * 300, "unknown model"), ("a\0b", "unknown model"),
], ids=range(6))  # fmt: skip
def test_unknown_model(home: Path, name: str, part: str) -> None:
    assert part in refused(load_model, name)


def test_path_errors_name_the_file(home: Path) -> None:
    path = home / "broken.yaml"
    path.write_text("name: [")
    assert refused(load_hardware, str(path)).startswith(f"{path}: line 2")
    assert refused(load_model, str(path)).startswith(f"{path}: line 2")


@pytest.mark.parametrize(("text", "expected"), [
    ("4xh100-sxm", (4, "h100-sxm")),
    ("8 x h100", (8, "h100")),
    ("2*h100", (2, "h100")),
    ("16Xh100", (16, "h100")),
    ("h100", (None, "h100")),
    ("4x", (None, "4x")),
    ("x4", (None, "x4")),
    ("-4xh100", (None, "-4xh100")),
    ("1.5xh100", (None, "1.5xh100")),
    ("\u0664xh100", (None, "\u0664xh100")),
    ("1" * 5000 + "xh100", (None, "1" * 5000 + "xh100")),
], ids=range(11))
def test_split_devices(home: Path, text: str, expected: Any) -> None:
    assert split_devices(text) == expected


def test_no_devices(home: Path) -> None:
    assert "at least one" in refused(split_devices, "0xh100")


def test_a_name_that_starts_like_devices(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(home, "2xwide")
    os.utime(home / "hardware", ns=(4, 4))
    assert split_devices("2xwide") == (None, "2xwide")
    monkeypatch.chdir(home / "hardware")
    assert split_devices("2xwide.yaml") == (None, "2xwide.yaml")


@pytest.mark.parametrize("kind", ["hardware", "models"])
def test_every_shipped_spec_loads_under_its_file_name(kind: Any) -> None:
    load = load_hardware if kind == "hardware" else load_model
    for name in catalogue.catalogue(kind):
        spec = load(name)
        assert spec.name == name
        for alias in spec.aliases:
            assert find(kind, alias) is not None, alias
