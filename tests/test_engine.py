"""Engines: the files that come with tokline, inheritance, and every mistake refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator import Engine, InputError
from simulator.specs.engine import engine_names, load_engine

GOOD = "name: x\ntitle: X\nversion: '1'\ndate: '2026'\nsource: a test\n"


def refused(name: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_engine(name)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


def file(folder: Path, text: str, name: str = "x.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_every_engine_loads() -> None:
    assert {"vllm", "tensorrt-llm", "sglang", "llama.cpp", "gpt-fast", "transformers",
            "ideal"} <= set(engine_names())
    for name in engine_names():
        engine = load_engine(name)
        assert engine.name == name
        assert engine.source
        assert engine.date
        assert engine.version


def test_units_and_defaults() -> None:
    vllm = load_engine("vllm")
    assert 1e-5 < vllm.host_time < 1e-2    # [s]
    assert 0 <= vllm.sequence_time < 1e-4
    assert 0 <= vllm.layer_time < 1e-3
    plain = Engine(name="x", title="X", version="1", date="2026", source="a test")
    assert (plain.memory_scale, plain.compute_scale, plain.launch_scale) == (1.0, 1.0, 1.0)
    assert (plain.async_host, plain.fp16_accumulate, plain.ideal) == (False, False, False)
    assert (plain.kv_copies, plain.cache_copies, plain.prefill_chunk) == (0.0, 0.0, None)
    assert vllm.context_bytes == 600 * 2**20
    assert (vllm.block_size, vllm.batched_tokens) == (16, 8192)
    assert 0.8 < vllm.memory_fraction < 1


def test_ideal_adds_nothing() -> None:
    e = load_engine("ideal")
    assert e.ideal
    assert (e.host_time, e.layer_time, e.context_bytes) == (0, 0, 0)
    assert (e.memory_fraction, e.block_size, e.batched_tokens) == (1.0, 1, None)


def test_names_are_forgiving() -> None:
    assert load_engine(" VLLM ") == load_engine("vllm") == Engine.load("vllm")


def test_inheritance_states_only_the_difference() -> None:
    parent, child = load_engine("vllm"), load_engine("sglang")
    assert child.batched_tokens == parent.batched_tokens
    assert child.block_size == 1 != parent.block_size
    assert child.notes != parent.notes or not parent.notes


def test_own_file(tmp_path: Path) -> None:
    engine = load_engine(file(tmp_path, GOOD + "inherits: vllm\nhost_time: 2 ms\n"))
    assert (engine.name, engine.host_time, engine.block_size) == ("x", 2e-3, 16)


def test_replace() -> None:
    engine = load_engine("vllm").replace(block_size=32)
    assert engine.block_size == 32
    with pytest.raises(InputError, match="block_size"):
        engine.replace(block_sise=1)


@pytest.mark.parametrize(("line", "words"), [
    ("host_time: 2", "unit"), ("host_time: -2 ms", "negative"), ("layer_time: 3 GB", "time"),
    ("block_size: 0", "block_size"), ("block_size: 1.5", "block_size"),
    ("batched_tokens: 0", "batched_tokens"), ("memory_fraction: 1.2", "memory_fraction"),
    ("memory_fraction: 0", "memory_fraction"), ("memory_policy: some", "memory_policy"),
    ("memory_scale: 0", "memory_scale"),
    ("memory_scale: .nan", "memory_scale"), ("memory_scale: .inf", "memory_scale"),
    ("compute_scale: -1", "compute_scale"), ("launch_scale: 0", "launch_scale"),
    ("prefill_launch_scale: 0", "prefill_launch_scale"),
    ("sequence_time: -1 us", "sequence_time"), ("kv_copies: -1", "kv_copies"),
    ("cache_copies: -1", "cache_copies"), ("prefill_chunk: 0", "prefill_chunk"),
    ("prefill_chunk: 1.5", "prefill_chunk"), ("async_host: 1", "async_host"),
    ("hosttime: 1 ms", "host_time"),
    ("inherits: vlm", "vllm"), ("fused: 1", "fused"), ("context_bytes: 1 s", "memory"),
])  # fmt: skip
def test_mistakes(tmp_path: Path, line: str, words: str) -> None:
    assert words in refused(file(tmp_path, GOOD + line + "\n"))


@pytest.mark.parametrize("key", ["name", "title", "version", "date", "source"])
def test_missing_fields(tmp_path: Path, key: str) -> None:
    text = "".join(f"{line}\n" for line in GOOD.splitlines() if not line.startswith(key))
    assert key in refused(file(tmp_path, text))


@pytest.mark.parametrize("name", ["vlm", "", "x" * 300, "/", "nothing.yaml", "a\x00b",
                                  "a\x00b.yaml", ".", "../..", "a/b.yaml"])
def test_wrong_names(name: str) -> None:
    refused(name)


def test_an_engine_that_inherits_from_itself(tmp_path: Path) -> None:
    assert "itself" in refused(file(tmp_path, GOOD + "inherits: x\n"))


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe\x80", b"- 1\n- 2\n", b"a: [",
                                     b"name: \xff"])
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    refused(str(path))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "x.yaml"
    folder.mkdir()
    refused(str(folder))
