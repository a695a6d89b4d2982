"""`tokline models list|show|import`, text and JSON, and the pinned keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import Model
from simulator.cli import run
from simulator.specs.catalogue import catalogue

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}


def told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run(["models", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def config(folder: Path, **more: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | more))
    return str(path)


@pytest.mark.parametrize(("name", "golden"), [
    ("llama-3.1-8b", {
        "parameters_total": 8030261248, "parameters_active": 8030261248,
        "parameters_active_no_input_embedding": 7504924672, "kv_bytes_per_token": 131072,
        "kv_bytes_at": {"8192": 1073741824, "32768": 4294967296, "131072": 17179869184},
        "fixed_state_bytes": 0}),
    ("mixtral-8x7b", {"parameters_total": 46702792704, "parameters_active": 12879925248}),
    ("deepseek-v3", {
        "parameters_total": 671026404352, "kv_bytes_per_token": 70272,
        "kv_bytes_at": {str(n): 70272 * n for n in (8192, 32768, 131072)}}),
    ("gemma-3-1b", {    # 22 layers stop at 512 tokens
        "kv_bytes_per_token": 26624,
        "kv_bytes_at": {str(n): 4096 * n + 22528 * 512 for n in (8192, 32768, 131072)}}),
])
def test_show_json(capsys: pytest.CaptureFixture[str], name: str, golden: dict[str, Any]) -> None:
    code, out, err = told(capsys, "show", name, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {key: found[key] for key in golden} == golden
    assert {"parameters_total", "parameters_active", "parameters_active_no_input_embedding",
            "kv_bytes_per_token", "kv_bytes_at", "fixed_state_bytes"} <= set(found)


def test_show_json_of_a_hybrid(capsys: pytest.CaptureFixture[str]) -> None:
    """Growing and fixed parts apart: the fixed one does not grow with the context."""
    found = json.loads(told(capsys, "show", "qwen3.5-27b", "--json")[1])
    assert found["kv_bytes_per_token"] == 65536
    assert found["kv_bytes_at"]["8192"] == 65536 * 8192
    assert found["fixed_state_bytes"] == 48 * (48 * 128 * 128 + 4 * 10240) * 2
    assert sum(g["fixed_state_bytes"] for g in found["layer_groups"]) == found["fixed_state_bytes"]
    assert sum(g["kv_bytes_per_token"] for g in found["layer_groups"]) == 65536


def test_show_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "show", "llama-3.1-8b")
    assert code == 0
    for part in ("8,030,261,248", "131,072", "GQA 32/8 x 128", "tensor parallel: 1; 2; 4; 8; 16 ("):
        assert part in out


def test_show_names_why_a_degree_fails(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(told(capsys, "show", "qwen2.5-7b")[1].split())
    assert "tensor parallel: 1; 2; 4" in out
    assert "not 8: does not divide the 28 heads" in out


def test_show_takes_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = config(tmp_path)
    by_file = json.loads(told(capsys, "show", path, "--json")[1])
    by_folder = json.loads(told(capsys, "show", str(tmp_path), "--json")[1])
    assert by_file == by_folder
    assert by_file["parameters_total"] == 171456


def test_list_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["name"] for row in rows} == set(catalogue("models"))


def test_list_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "list", "--family", "llama", "--largest", "10B")[1]
    assert "llama-3.1-8b" in out
    assert "128k" in out
    assert "405" not in out
    assert " models. " in out


def test_import_text_loads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = told(capsys, "import", config(tmp_path))
    assert code == 0
    file = tmp_path / "back.yaml"
    file.write_text(out)
    assert Model.load(file) == Model.load(tmp_path)


def test_import_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "written.yaml"
    code, out, _ = told(capsys, "import", config(tmp_path), "-o", str(file))
    assert (code, out) == (0, "")
    assert Model.load(file) == Model.load(tmp_path)


def test_import_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The counts, the spec, and what was inferred."""
    code, out, _ = told(capsys, "import", config(tmp_path, torch_dtype=None), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["parameters_total"] == 171456
    assert found["spec"]["hidden"] == 64
    assert any("torch_dtype" in note for note in found["notes"])


def test_import_tells_what_it_inferred(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = told(capsys, "import", config(tmp_path, torch_dtype=None))
    assert code == 0
    assert "torch_dtype" in err
    assert "torch_dtype" not in out


def test_import_keeps_the_format_of_a_state(capsys: pytest.CaptureFixture[str],
                                            tmp_path: Path) -> None:
    path = Path(__file__).parent / "data" / "configs" / "qwen3.5-27b.json"
    data = json.loads(path.read_text())
    data["text_config"]["mamba_ssm_dtype"] = "float32"
    file = tmp_path / "hybrid.json"
    file.write_text(json.dumps(data))
    assert json.loads(told(capsys, "import", str(file), "--json")[1])["spec"]["state_format"] == (
        "fp32")
    code, _, err = told(capsys, "import", config(tmp_path, mamba_ssm_dtype="int3"))
    assert code == 2
    assert "mamba_ssm_dtype" in err


@pytest.mark.parametrize(("args", "words"), [
    (("show", "lama-3.1-8b"), "llama-3.1-8b"), (("show",), "NAME"),
    (("show", "no/such/config.json"), "no such file"), (("import", "nothing.json"), "no such file"),
    (("import", "."), "config.json"), (("import",), "PATH"),
    (("list", "--sort", "size"), "size"), (("list", "--familly", "x"), "--family"),
])  # fmt: skip
def test_mistakes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                  tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = told(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("more", [
    {"model_type": "lama"}, {"model_type": "rwkv"}, {"hidden_size": "big"}, {"hidden_size": -1},
    {"quantization_config": {"quant_method": "mystery"}},
])
def test_import_refuses_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                    more: dict[str, Any]) -> None:
    code, out, err = told(capsys, "import", config(tmp_path, **more))
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_output_that_can_not_be_written(capsys: pytest.CaptureFixture[str],
                                        tmp_path: Path) -> None:
    code, _, err = told(capsys, "import", config(tmp_path), "-o", str(tmp_path / "no" / "x.yaml"))
    assert code == 2
    assert "--output" in err
