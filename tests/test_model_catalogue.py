"""Every model of the catalogue against counts and cache sizes that were computed elsewhere."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from simulator.importers import write_yaml
from simulator.kv_cache import fixed_state_elements, kv_elements_at, kv_elements_per_token
from simulator.parameters import (
    group_tensors,
    model_tensors,
    parameters_active,
    parameters_active_no_input_embedding,
    parameters_total,
)
from simulator.specs.model import Model, parse_model, read_model
from simulator.specs.strict_yaml import load_yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "models").glob("*.yaml"))
TRUTH = {
    row["name"]: row
    for row in csv.DictReader((ROOT / "tests/data/model_truth.csv").open(encoding="utf-8"))
}
CONTEXTS = {"kv_bytes_8k": 8192, "kv_bytes_32k": 32768, "kv_bytes_128k": 131072}


def figures(model: Model) -> dict[str, float]:
    """The figures that a row of the truth gives, computed from the model."""
    return {
        "params_total": parameters_total(model),
        "active": parameters_active(model),
        "active_no_input_embedding": parameters_active_no_input_embedding(model),
        "kv_bytes_per_token": 2 * kv_elements_per_token(model),
        "fixed_state_values": fixed_state_elements(model),
        **{name: 2 * kv_elements_at(model, tokens) for name, tokens in CONTEXTS.items()},
    }


def expected(row: dict[str, str]) -> dict[str, float]:
    """The figures of a row of the truth."""
    return {key: float(value) for key, value in row.items() if key not in ("name", "source")}


def test_the_catalogue_is_large_and_known() -> None:
    assert len(FILES) >= 80
    assert {path.stem for path in FILES} == set(TRUTH)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_equal_the_truth(path: Path) -> None:
    model = read_model(path)
    assert model.name == path.stem
    assert figures(model) == expected(TRUTH[path.stem])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_has_a_source_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    model = read_model(path)
    assert model.source is not None
    assert model.source.source
    assert model.source.date
    assert model.title
    copy = tmp_path / "copy.yaml"
    copy.write_text(write_yaml(model), encoding="utf-8")
    assert parse_model(load_yaml(copy), "copy") == model


def test_aliases_are_unique_and_on_one_line() -> None:
    stems = {path.stem for path in FILES}
    owner: dict[str, str] = {}
    for path in FILES:
        aliases = read_model(path).aliases
        lines = re.findall(r"^aliases: \[.*\]$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(lines) == (1 if aliases else 0), path.stem
        for alias in aliases:
            assert alias == alias.lower()
            assert "_" not in alias or alias.replace("_", "-") not in stems
            assert alias not in stems, f"{path.stem}: {alias}"
            assert alias not in owner, f"{path.stem} and {owner.get(alias)}: {alias}"
            owner[alias] = path.stem


@pytest.mark.parametrize(
    ("alias", "name"),
    [("deepseek-r1", "deepseek-v3"), ("mistral-7b", "mistral-7b-v0.3"),
     ("Meta-Llama-3.1-8B", "llama-3.1-8b"), ("mixtral", "mixtral-8x7b")],
)
def test_alias_finds_the_model(alias: str, name: str) -> None:
    assert Model.load(alias).name == name


def test_textbook_model_streams_exactly_14e9_bytes() -> None:
    model = Model.load("7b-fp16")
    assert model.formats == {"weights": "fp16"}
    assert sum(2 * t.total for t in model_tensors(model) if t.streamed) == 14e9


def test_prediction_layer_of_deepseek_v3() -> None:
    model = Model.load("deepseek-v3")
    stored = sum(t.total for group in model.mtp for t in group_tensors(model, group))
    assert stored == 11_610_067_968
    copies = 2 * model.vocabulary * model.hidden
    assert parameters_total(model) + stored + copies == 684_489_830_400


def test_cache_at_an_array_of_contexts_equals_the_scalars() -> None:
    contexts = np.array([1.0, 100.0, 4096.0, 131072.0])
    for name in ("gemma-3-27b", "llama-4-scout", "deepseek-v3.2", "jamba-1.5-mini"):
        model = Model.load(name)
        values = kv_elements_at(model, contexts)
        assert values.shape == contexts.shape
        assert list(values) == [kv_elements_at(model, c) for c in contexts]
        assert values[0] == kv_elements_per_token(model)
        assert np.all(np.diff(values) > 0)


def test_windows_hold_the_cache_below_the_naive_product() -> None:
    model = Model.load("mistral-7b-v0.1")
    assert kv_elements_at(model, 131072) == 4096 * kv_elements_per_token(model)


def test_no_file_names_this_machine() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(?:work|home|tmp)/|shared/|wheel", text), path.stem
