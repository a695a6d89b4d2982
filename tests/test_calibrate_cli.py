"""`tokline calibrate` on files: what it prints, what it writes, and every refusal in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import run
from simulator.deployment import Deployment
from simulator.specs.catalogue import load_hardware
from simulator.validation.cases import cases_of
from simulator.validation.measurements import Row
from simulator.validation.predict import predict

FLAGS = ("--hardware", "h100", "--engine", "vllm", "--weights", "bf16")


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = run(["calibrate", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def bench(batch: int, level: float = 1.4) -> dict[str, Any]:
    """A result of vllm bench serve on an H100 whose memory is this much slower."""
    common: dict[str, Any] = {
        "id": "", "source": "s", "date": "2025-10", "licence": "", "hardware": "h100-sxm5-80gb",
        "n_devices": 1, "engine": "vllm", "version": "", "model": "llama-3.1-8b",
        "weights": "bf16", "kv": "", "tp": 1, "pp": None, "ep": None, "batch": float(batch),
        "rate": "", "input": 1024.0, "output": 256.0, "value": 1.0, "quality": "A", "notes": ""}
    cases, _ = cases_of([Row(metric=m, **common) for m in ("tpot_ms", "throughput_out_tok_s",
                                                           "ttft_ms")])

    def change(d: Deployment) -> Deployment:
        return d.replace(hardware=d.hardware.replace(memory_level=level))

    tpot, rate, ttft = map(float, predict(cases, change).expected)
    return {"date": "20251003-120000", "backend": "openai", "model_id": "x/Llama-3.1-8B-Instruct",
            "num_prompts": 64, "request_rate": "inf", "max_concurrency": batch, "completed": 64,
            "failed": 0, "total_input_tokens": 65536, "total_output_tokens": 16384,
            "request_throughput": rate / 256, "output_throughput": rate, "median_ttft_ms": ttft,
            "median_tpot_ms": tpot}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bench")
    found = []
    for batch in (1, 2, 4, 8, 16, 32):
        found.append(folder / f"{batch}.json")
        found[-1].write_text(json.dumps(bench(batch)))
    return found


def test_prints_a_hardware_file(files: list[Path], tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *files, *FLAGS)
    assert (code, err) == (0, "")
    assert "# Held back are whole runs, on which no constant was fitted." in out
    path = tmp_path / "h.yaml"
    path.write_text(out)
    assert load_hardware(str(path)).memory_level == pytest.approx(1.4, rel=0.03)


def test_writes_it_where_asked_and_estimate_uses_it(files: list[Path], tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    code, out, _ = told(capsys, *files, *FLAGS, "-o", path)
    assert code == 0
    assert out.splitlines()[-1] == f"{path} written"
    assert "memory_level" in out
    assert "held back, after" in out
    assert "queueing" in out
    assert told(capsys, *files, *FLAGS, "-o", path)[0] == 0    # its own file may be written over
    found = []
    for name in (path, "h100"):
        assert run(["estimate", "llama-3.1-8b", str(name), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["tpot_s"])
    assert found[0]["expected"] > 1.1 * found[1]["expected"]
    assert found[0]["ceiling"] == found[1]["ceiling"]


def test_json_is_one_value(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *files, *FLAGS, "--json")
    found = json.loads(out)
    assert (code, err, found["refused"], found["file"]) == (0, "", None, None)
    assert found["hardware"] == "h100-sxm5-80gb"
    assert found["rows"] == 18
    assert found["constants"]["memory_level"]["after"] == pytest.approx(1.4, rel=0.03)
    assert found["held_back"]["after"]["median_abs_ln"] < found["held_back"]["before"][
        "median_abs_ln"]
    assert found["yaml"].startswith("# Made by `tokline calibrate`")


def test_rows_are_a_file_that_validate_reads(files: list[Path], tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    path, again = tmp_path / "rows.csv", tmp_path / "again.yaml"
    assert told(capsys, *files, *FLAGS, "--rows", path)[0] == 0
    assert run(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_covered"] == {}
    code, out, _ = told(capsys, path, "-o", again, "--json")
    assert code == 0
    assert json.loads(out)["hardware"] == "h100-sxm5-80gb"


def test_too_few_rows_is_a_no(files: list[Path], tmp_path: Path,
                              capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.yaml"
    code, out, err = told(capsys, *files[:2], *FLAGS, "-o", path)
    assert (code, err) == (1, "")
    assert not path.exists()
    assert out.startswith("REFUSED: 5 rows of 2 runs can be used, at least 6 rows of 4 runs")
    code, out, _ = told(capsys, *files[:2], *FLAGS, "--json")
    assert code == 1
    assert json.loads(out)["yaml"] is None
    assert json.loads(out)["refused"]


def test_impossible_rows_are_named(files: list[Path], tmp_path: Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(bench(3) | {"median_tpot_ms": 0.5}))
    code, out, _ = told(capsys, *files, bad, *FLAGS)
    assert code == 1
    assert out.startswith("REFUSED: 1 of 15 rows are faster than physics")
    assert f"  {bad}: tpot_ms 0.5 ms, ceiling 4." in out
    code, out, _ = told(capsys, *files, bad, *FLAGS, "--drop-impossible", "--json")
    assert code == 0
    assert json.loads(out)["dropped"] == 1
    assert json.loads(out)["impossible"][0]["measured"] == 0.5


@pytest.mark.parametrize(("data", "words"), [
    (b"", "the file is empty"), (b"\x00\xff\x00", "neither JSON nor CSV"),
    (b'{"completed": 64, "tot', "(is it cut off?)"), (b'{"answer": 42}', "its keys: answer"),
    (b"x,y\n1,2\n", "neither JSON nor a CSV")])
def test_bad_files_are_one_line(data: bytes, words: str, tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(data)
    code, out, err = told(capsys, path, *FLAGS)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tokline: {path}: ")
    assert words in err


@pytest.mark.parametrize(("flags", "words"), [
    (("--hardware", "h10"), "did you mean 'h100'"), (("--engine", "vlm"), "did you mean 'vllm'"),
    (("--weights", "fp99"), "--weights: unknown format 'fp99'"),
    (("--model", "lama-3.1-8b"), "did you mean 'llama-3.1-8b'"), (("--tp", "0"), "--tp"),
    (("--hardware", "4xh100", "--tp", "2"), "4 devices"),
    (("--device", "cpu"), "not with FILES"), (("-o", "/nowhere/x.yaml"), "can't be written")])
def test_bad_flags_are_one_line(files: list[Path], flags: tuple[str, ...], words: str,
                                capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *files, *FLAGS, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_other_people_s_files_are_not_written_over(files: list[Path], tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text("name: theirs\n")
    code, out, err = told(capsys, *files, *FLAGS, "-o", path)
    assert (code, out) == (2, "")
    assert "wasn't made by tokline calibrate" in err
    assert path.read_text() == "name: theirs\n"
    assert "is named twice" in told(capsys, *files, *FLAGS, "-o", files[0])[2]


@pytest.mark.parametrize(("flags", "words"), [
    (("--model", "llama-3.1-8b"), "--model: holds for benchmark files"),
    (("--drop-impossible",), "--drop-impossible: holds for benchmark files"),
    (("--device", "tpu"), "'tpu' is not cpu or cuda"), (("--dtype", "int3"), "'int3' is not one"),
    (("--minutes", "soon"), "'soon' is not a number"), (("--threads", "0"), "--threads")])
def test_bad_flags_of_the_machine(flags: tuple[str, ...], words: str,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
