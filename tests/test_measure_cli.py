"""`tokline measure` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'tokline[torch]'")

import torch

from simulator.cli import run
from simulator.validation.measurements import COLUMNS, read_rows
from simulator.validation.names import UnknownError, model_of

SMALL = ["measure", "llama-3.2-1b", "--device", "cpu", "--layers", "2", "--scale", "0.05",
         "--input", "16", "--output", "4", "--repeats", "3", "--threads", "1"]


@pytest.fixture(autouse=True)
def same_threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tokline(capsys: Any, *args: str) -> tuple[int, str, str]:
    code = run(list(args))
    found = capsys.readouterr()
    return code, found.out, found.err


def refused(capsys: Any, *args: str) -> str:
    """The one line of stderr of a refusal."""
    code, out, err = tokline(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("tokline: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_json_has_every_phase_and_operation_in_si_units(capsys: Any) -> None:
    code, out, err = tokline(capsys, *SMALL, "--batch", "1,2", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["model"] == "llama-3.2-1b layers=2 scale=0.05"
    assert answer["mode"] == "eager"
    assert answer["dtype"] == "fp32"
    assert answer["environment"]["threads"] == 1
    assert answer["weights_bytes"] == 4 * answer["parameters"]
    assert [p["batch"] for p in answer["points"]] == [1, 2]
    for point in answer["points"]:
        for phase, tokens in (("prefill", 16 * point["batch"]), ("decode", point["batch"])):
            found = point[phase]
            t = found["time_s"]
            assert 0 < t["p10"] <= t["median"] <= t["p90"] < 60
            assert t["repeats"] == 3
            assert found["tokens_per_s"] == pytest.approx(tokens / t["median"])
            assert found["bytes_per_s"] == pytest.approx(found["bytes"] / t["median"])
            assert found["flops_per_s"] == pytest.approx(found["flops"] / t["median"])
            names = [o["name"] for o in found["operations"]]
            assert len(names) == len(set(names)) == 10
            assert sum(o["flops"] for o in found["operations"]) == pytest.approx(found["flops"])
    assert "NaN" not in out


def test_the_file_is_read_back_by_validate(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    code, out, _ = tokline(capsys, *SMALL, "--batch", "1,2", "--input", "16,32", "-o", str(file))
    assert code == 0
    assert f"{file} written" in out
    rows = read_rows(file)
    assert len(rows) == 8
    assert {r.metric for r in rows} == {"prefill_ms", "tpot_ms"}
    assert {(r.batch, r.input) for r in rows} == {(1, 16), (2, 16), (1, 32), (2, 32)}
    # On a machine with other work repeats lie far apart, and a row says so.
    assert all("threads=1" in r.notes and r.quality in ("A", "C") for r in rows)
    assert len({r.id for r in rows}) == 8
    code, out, _ = tokline(capsys, "validate", str(file), "--json")
    assert code == 0
    assert sum(json.loads(out)["not_covered"].values()) == sum(r.quality == "A" for r in rows)


def test_a_cut_model_is_not_taken_for_the_whole_one() -> None:
    assert model_of("llama-3.2-1b layers=2")[0].layer_count == 2
    assert model_of("llama-3.2-1b layers=2 scale=0.5")[0].hidden == 1024
    assert model_of("llama-3.2-1b")[0].layer_count == 16
    assert [g.count for g in model_of("deepseek-v3 layers=4")[0].layers] == [1, 3]
    for wrong in ("llama-3.2-1x layers=2", "llama-3.2-1b layers=0", "llama-3.2-1b scale=1e9e"):
        with pytest.raises(UnknownError):
            model_of(wrong)


def test_rows_of_a_machine_are_predicted_from_its_file(tmp_path: Path) -> None:
    """The device by the path of its file, the model by how it was cut."""
    yaml = tmp_path / "here.yaml"
    yaml.write_text("""
name: here
memory_class: ddr
memory_bandwidth: 30 GB/s
memory_capacity: 16 GiB
peak_fp32: 100 GFLOP/s
caches: [{name: L3, capacity: 16 MiB, bandwidth: 100 GB/s}]
kernels:
  - {kernel: gemm, format: fp32, rows: [1, 64], rates: [20 GFLOP/s, 90 GFLOP/s]}
""")
    rows = tmp_path / "rows.csv"
    assert run([*SMALL, "--batch", "1,2", "--hardware", str(yaml), "-o", str(rows)]) == 0
    from simulator.validation.run import validate

    report = validate([str(rows)])
    assert len(report.scored) == len(report.rows) == 4
    assert all(s.predicted >= s.ceiling > 0 for s in report.scored)


def test_csv_on_stdout_has_the_columns_in_order(capsys: Any) -> None:
    code, out, _ = tokline(capsys, *SMALL, "--csv", "--output", "1")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert tuple(rows[0]) == COLUMNS
    assert [r["metric"] for r in rows] == ["prefill_ms"]
    assert math.isfinite(float(rows[0]["value"]))


def test_a_catalogue_name_of_the_device_goes_into_the_rows(capsys: Any) -> None:
    code, out, _ = tokline(capsys, *SMALL, "--csv", "--hardware", "amd-epyc-9654")
    assert code == 0
    assert {r["hardware"] for r in csv.DictReader(io.StringIO(out))} == {"epyc-9654"}


def test_a_gpu_is_not_what_a_cpu_measured(capsys: Any) -> None:
    code, out, err = tokline(capsys, *SMALL, "--csv", "--hardware", "a100")
    assert (code, out) == (2, "")
    assert "runs on the CPU" in err


def test_table_names_machine_threads_and_operations(capsys: Any) -> None:
    code, out, _ = tokline(capsys, *SMALL, "--dtype", "BF16")
    assert code == 0
    assert ", 1 thread;" in out
    assert "bf16 weights" in out
    for word in ("prefill", "decode", "lm_head", "mlp_gate_up", "attention", "p90", "GFLOP/s"):
        assert word in out


def test_experts_run_too(capsys: Any) -> None:
    code, out, _ = tokline(capsys, "measure", "mixtral-8x7b", *SMALL[2:], "--json")
    assert code == 0
    names = {o["name"] for o in json.loads(out)["points"][0]["decode"]["operations"]}
    assert {"router", "experts"} <= names


@pytest.mark.parametrize(("args", "words"), [
    (["--layers", "0"], "--layers: 0 is not between"),
    (["--layers", "two"], "--layers: 'two'"),
    (["--layers", "1,2"], "it takes one number"),
    (["--scale", "0"], "--scale"),
    (["--scale", "nan"], "--scale"),
    (["--scale", "1e9"], "--scale"),
    (["--batch", "0"], "--batch"),
    (["--batch", "1,x"], "--batch"),
    (["--input", "4:1"], "runs backwards"),
    (["--output", "0"], "--output"),
    (["--repeats", "2"], "at least 3"),
    (["--threads", "0"], "--threads"),
    (["--dtype", "fp8"], "--dtype: 'fp8'"),
    (["--dtype", "bf61"], "did you mean 'bf16'"),
    (["--device", "tpu"], "valid: cpu, cuda"),
    (["--device", "cuda:77"], "--device"),
    (["--hardware", "h1000"], "h1000"),
    (["--cuda-graph"], "--cuda-graph"),
    (["--json", "--csv"], "give one of them"),
    (["-o", "/no/such/folder/x.csv"], "can't be written"),
    (["-o", "."], "is a folder"),
    (["--batch", "1:1000", "--input", "1:1000"], "points"),
    (["--layer", "2"], "no such option"),
])
def test_bad_input_is_one_line(capsys: Any, args: list[str], words: str) -> None:
    assert words in refused(capsys, *SMALL, *args)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_no_gpu_is_one_line(capsys: Any) -> None:
    assert "use --device cpu" in refused(capsys, *SMALL, "--device", "cuda")


def test_unknown_models_are_named(capsys: Any) -> None:
    assert "llama-9" in refused(capsys, "measure", "llama-9", *SMALL[2:])


@pytest.mark.parametrize("model", ["deepseek-v3.2", "mamba-2.8b", "gpt2", "gemma-3n-e2b",
                                   "gpt-oss-20b", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b",
                                   "llama-3.2-11b-vision", "zamba2-7b"])
def test_every_kind_of_layer_is_timed_by_operation(capsys: Any, model: str) -> None:
    args = ["measure", model, *SMALL[2:], "--layers", "6", "--scale", "0.03", "--json"]
    code, out, _ = tokline(capsys, *args)
    assert code == 0
    for phase in ("prefill", "decode"):
        found = json.loads(out)["points"][0][phase]
        counted = {o["name"] for o in found["operations"] if o["bytes"] > 0.0}
        timed = {o["name"] for o in found["operations"] if o["count"] > 0}
        assert counted == timed
        assert sum(o["flops"] for o in found["operations"]) == pytest.approx(found["flops"])
        assert sum(o["bytes"] for o in found["operations"]) == pytest.approx(found["bytes"])


def test_what_does_not_fit_is_a_no_that_says_what_does(capsys: Any) -> None:
    args = ["measure", "llama-3.1-405b", "--device", "cpu", "--scale", "3", "--json"]
    code, out, err = tokline(capsys, *args)
    assert code == 1
    assert err.count("\n") == 1
    answer = json.loads(out)
    assert answer["fits"] is False
    assert answer["needed_bytes"] > answer["free_bytes"]
    code, out, err = tokline(capsys, *args[:-1])
    assert (code, out) == (1, "")
    assert "are free" in err


def test_without_torch_it_says_what_to_install(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'tokline[torch]'" in refused(capsys, *SMALL)


def test_help_lists_the_options(capsys: Any) -> None:
    code, out, _ = tokline(capsys, "measure", "--help")
    assert code == 0
    for option in ("--device", "--layers", "--scale", "--dtype", "--cuda-graph", "--threads"):
        assert option in out
