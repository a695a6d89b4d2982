"""`python -m simulator.validation.kernels`: pinned JSON, exclusions, hold-out, bad input."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from simulator.efficiency import fits
from simulator.efficiency.constants import Chain
from simulator.specs.catalogue import load_hardware
from simulator.validation import kernels, timings

COLUMNS = ("hardware", "framework", "framework_version", "op", "sub_op", "dtype_w", "dtype_a",
           "dtype_kv", "m", "n", "k", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads",
           "head_dim", "window", "topk", "n_experts", "ep", "tp", "message_bytes", "time_us",
           "kernel", "model", "source", "notes")
TRUE = Chain(0.7, 0.8, 0.7, 4e-6, 4e-8, 1e-6, 2.0)


def _write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _gemm_rows(hardware="h100_sxm", dtype="bfloat16", scale=1.0):
    rows = [{"m": m, "n": n, "k": k} for m in (1, 16, 64, 256, 2048) for n in (512, 1024, 4096)
            for k in (512, 2048, 8192)]
    table = {c: np.array([r[c] for r in rows], float) for c in "mnk"}
    time = fits.predict("gemm", table | {"time_us": np.ones(len(rows))},
                        load_hardware("h100-sxm5-80gb"), "bf16", TRUE) * 1e6 * scale
    return [r | {"hardware": hardware, "framework": "vllm", "op": "gemm", "dtype_w": dtype,
                 "dtype_a": dtype, "time_us": float(t), "kernel": "mm", "source": "test"}
            for r, t in zip(rows, time, strict=True)]


def _collective_rows():
    return [{"hardware": "h100_sxm", "framework": "nccl", "op": "allreduce", "sub_op": "nccl",
             "tp": n, "message_bytes": 2**i, "time_us": 6 + 2 * n + 2**i * 1.5 / 3e5,
             "kernel": "NCCL", "source": "test"} for n in (2, 4, 8) for i in range(10, 30)]


@pytest.fixture
def table(tmp_path):
    other = [{"hardware": "abacus", "framework": "x", "op": "gemm", "dtype_w": "bfloat16", "m": 8,
              "n": 512, "k": 512, "time_us": 5},
             {"hardware": "h100_sxm", "framework": "x", "op": "conv", "time_us": 5}]
    return _write(tmp_path / "t.csv", _gemm_rows() + _collective_rows() + other)


def _run(capsys, *arguments):
    code = kernels.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_json(table, capsys):
    code, out, err = _run(capsys, table, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    gemm = next(o for o in result["ops"] if o["op"] == "gemm")
    assert {"op", "hardware", "framework", "kernel", "dtype", "level", "n", "mape", "median", "p90",
            "bias"} <= set(gemm)
    assert (gemm["hardware"], gemm["dtype"], gemm["level"], gemm["n"]) == (
        "h100_sxm", "bfloat16", "chip", 45)
    assert 0 < gemm["median"] < gemm["p90"] < 60
    classes = {s["class"]: s for s in result["summary"]}
    assert classes["gemm bf16"]["mape"] == gemm["mape"]
    assert classes["collectives NVLink"]["groups"] == 1
    assert result["not_covered"] == {"hardware not in the catalogue: abacus": 1,
                                     "operation without a form": 1}


def test_text(table, capsys):
    code, out, _ = _run(capsys, table)
    assert code == 0
    assert "gemm bf16" in out
    assert "hardware not in the catalogue" in out


def test_parquet_is_the_same(table, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    import pandas as pd

    pd.read_csv(table).to_parquet(tmp_path / "t.parquet")
    texts = [_run(capsys, path, "--json")[1] for path in (table, tmp_path / "t.parquet")]
    assert texts[0] == texts[1]


def test_hold_out_recovers_the_form_on_other_shapes(table, capsys):
    pytest.importorskip("scipy")
    result = json.loads(_run(capsys, table, "--json", "--hold-out")[1])
    gemm = next(o for o in result["ops"] if o["op"] == "gemm")
    assert gemm["level"] == "held-out"
    assert gemm["median"] < 1.0


def test_hold_out_never_fits_what_it_scores(table, monkeypatch):
    """No shape family of a scored fold stands among the rows that its constants were fitted on."""
    rows, _ = timings.prepare(timings.read([table]))
    seen = []
    monkeypatch.setattr(kernels, "fit", lambda family, train, *rest: seen.append(
        (family, train)) or TRUE)
    monkeypatch.setattr(kernels, "predict", lambda family, test, *rest: seen.append(
        (family, test)) or np.ones(len(test)))
    names, group = next((n, g) for n, g in timings.groups(rows) if n["family"] == "gemm")
    kernels.score_held_out(names, group, load_hardware("h100-sxm5-80gb"))
    assert len(seen) == 2 * kernels.FOLDS
    scored = 0
    for (_, train), (_, test) in zip(seen[::2], seen[1::2], strict=True):
        families = [set(zip(part["n"], part["k"], strict=True)) for part in (train, test)]
        assert not families[0] & families[1]
        scored += len(test)
    assert scored == len(group)


def test_without_own(table, capsys):
    result = json.loads(_run(capsys, table, "--json", "--without-own")[1])
    gemm = next(o for o in result["ops"] if o["op"] == "gemm")
    assert gemm["level"] == "architecture"


def test_exclusions(tmp_path):
    """What isn't the time of one kernel in serving is left out, with its reason."""
    base = _gemm_rows()[30] | {"source": "aiconfigurator-core"}
    decode = {"hardware": "b60", "framework": "vllm", "op": "attention_decode",
              "dtype_a": "bfloat16", "dtype_kv": "bfloat16", "batch": 8, "q_len": 1, "kv_len": 1024,
              "n_heads": 8, "n_kv_heads": 8, "head_dim": 128, "time_us": 20}
    gaps = {"hardware": "a800", "source": "NetX-lab/Frontier (MIT)"}
    rows = [base | {"dtype_w": "fp8_block"}, base | gaps | {"m": 7}, base | {"n": 64},
            base, base | {"framework_version": "2"}, base | {"m": 3, "time_us": 0}, decode,
            decode | {"hardware": "h100_sxm", "window": 128},
            {"hardware": "l40s", "framework": "vllm", "op": "allreduce", "tp": 8, "time_us": 1e6,
             "sub_op": "custom_allreduce", "message_bytes": 1024}]
    kept, reasons = timings.prepare(timings.read([_write(tmp_path / "x.csv", rows)]))
    assert len(kept) == 1
    assert reasons == {
        "corrupt or placeholder times": 2, "eager launch: processor time, not kernel time": 1,
        "fallback attention kernel off the roofline": 1,
        "link topology other than the device's": 1, "shape outside of LLM serving": 2,
        "the same row again in another version of the table": 1}


def test_a_chip_is_not_left_out_for_the_faults_of_one_table(tmp_path):
    """Frontier's A800 traces hold launch gaps; another's A800 counts, and fp16 is a format."""
    row = _gemm_rows()[30] | {"hardware": "a800", "source": "mine", "dtype_w": "fp16",
                              "dtype_a": "fp16"}
    kept, reasons = timings.prepare(timings.read([_write(tmp_path / "x.csv", [row])]))
    assert (len(kept), reasons) == (1, {})
    assert (kept["chip"].iloc[0], kept["format"].iloc[0]) == ("a800-sxm4-80gb", "bf16")


@pytest.mark.parametrize(("name", "content", "message"), [
    ("none.csv", None, "no such file"),
    ("empty.csv", b"", "the file is empty"),
    ("binary.csv", b"\x00\x01\x02" * 50, "binary"),
    ("bad.parquet", b"PAR1 nothing of the kind", "not a table"),
    ("head.csv", b"hardware,framework,op,time_us\n", "no rows"),
    ("time.csv", b"hardware,framework,op,dtype_w,m,n,k\nh100,x,gemm,bfloat16,1,512,512\n",
     "column 'time_us' is missing"),
    ("shape.csv", b"hardware,framework,op,dtype_w,m,n,time_us\nh100,x,gemm,bfloat16,1,512,4\n",
     "column 'k' is missing"),
    ("minus.csv", b"hardware,framework,op,dtype_w,m,n,k,time_us\nh100,x,gemm,bfloat16,1,9,9,-4\n",
     "-4 is below 0"),
    ("word.csv", b"hardware,framework,op,dtype_w,m,n,k,time_us\nh100,x,gemm,bfloat16,1,9,9,fast\n",
     "'fast' is not a number"),
])
def test_bad_input(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    code, out, err = _run(capsys, path, "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert name in err
    assert err.count("\n") == 1


def test_modes_exclude_each_other(table, capsys):
    assert _run(capsys, table, "--hold-out", "--without-own")[0] == 2
