"""`tokline sweep` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from simulator.cli import run

RUN = [sys.executable, "-c", "from simulator.cli import main; main()"]


def test_front_and_top(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "llama-3.1-8b", "h100,a100", "--batch", "1:256:x2"]) == 0
    out = capsys.readouterr()
    assert "18 configurations" in out.out
    assert "Pareto front" in out.out
    assert "Best 10 by output_tokens_per_s_per_device" in out.out
    assert out.err == ""


def test_json_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["sweep", "--models", "llama-3.1-8b,llama-3.1-70b", "--hardware", "h100", "--batch",
                "1:64:x2", "--where", "fits and tpot_s < 0.05", "--goal", "tpot_s", "--top", "3",
                "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["rows"] == 14
    assert found["feasible"] == found["kept"] == 7
    assert found["wall_s"] > 0
    assert found["rows_per_s"] == pytest.approx(14 / found["wall_s"])
    assert len(found["top"]) == 3
    assert found["top"][0]["tpot_s"] == min(r["tpot_s"] for r in found["top"])
    assert {r["model"] for r in found["pareto"]} == {"llama-3.1-8b"}


def test_nothing_fits_is_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "llama-3.1-405b", "a100", "--tp", "1,3"]) == 1
    assert "nothing fits" in capsys.readouterr().out


def test_grid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("models: [llama-3.1-8b]\nhardware: [h100, 2xh100]\nbatch: 1:8:x2\n"
                    "input: [128, 1k]\nweights: [own, fp8]\nwhere: fits\nprice: 2.5\ntop: 2\n")
    assert run(["sweep", "--grid", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2 * 4 * 2 * 2
    assert run(["sweep", "--grid", str(file), "--batch", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2 * 2 * 2
    file.write_text("models: [llama-3.1-8b]\nhardwar: [h100]\n")
    assert run(["sweep", "--grid", str(file)]) == 2
    assert "unknown key 'hardwar' (did you mean 'hardware'?)" in capsys.readouterr().err


def test_degrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "deepseek-v3", "h200", "--tp", "8,16", "--ep", "1,8,16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 6
    assert all(r["devices"] == r["tp"] for r in found["top"])


@pytest.mark.parametrize("arguments", [
    [], ["llama-3.1-8b"], ["llama-3.1-8bx", "h100"], ["llama-3.1-8b", "h100z"],
    ["llama-3.1-8b", "h100", "--batch", "-1"], ["llama-3.1-8b", "h100", "--batch", "0"],
    ["llama-3.1-8b", "h100", "--batch", ""], ["llama-3.1-8b", "h100", "--batch", "8:1"],
    ["llama-3.1-8b", "h100", "--batch", "1:999999", "--input", "1:99999"],
    ["llama-3.1-8b", "h100", "--where", "fits and"], ["llama-3.1-8b", "h100", "--where", "eval(1)"],
    ["llama-3.1-8b", "h100", "--goal", "speed"], ["llama-3.1-8b", "h100", "--goal", "model"],
    ["llama-3.1-8b", "h100", "--pareto", "tpot_s,nope"], ["llama-3.1-8b", "h100", "--top", "-1"],
    ["llama-3.1-8b", "h100", "--top", "x"], ["llama-3.1-8b", "h100", "--workers", "0"],
    ["llama-3.1-8b", "h100", "-o", "/nonexistent/x.csv"], ["llama-3.1-8b", "h100", "-o", "x.xls"],
    ["llama-3.1-8b", "h100", "-o", "/proc/x.csv"], ["llama-3.1-8b", "h100", "--columns", "zzz"],
    ["llama-3.1-8b", "h100", "--tp", "0"], ["llama-3.1-8b", "h100", "--tp", "1:x"],
    ["llama-3.1-8b", "h100", "--models", "gpt2"], ["llama-3.1-8b", "h100", "--grid", "none.yaml"],
    ["llama-3.1-8b", "h100", "--prefix-hit", "2"], ["llama-3.1-8b", "h100", "--price", "-1"],
    ["llama-3.1-8b", "h100", "--workers", "2", "--dask", "tcp://127.0.0.1:1"],
    ["llama-3.1-8b", "h100", "--dask", "nonsense"], [",", "h100"], ["llama-3.1-8b", "0xh100"],
    ["llama-3.1-8b", "h100", "--weights", "fp99"], ["llama-3.1-8b", "h100", "--engine", "vlm"],
])
def test_bad_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", *arguments]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("tokline: ")
    assert out.err.count("\n") == 1


def test_workers(tmp_path: Path) -> None:
    files = []
    for extra in ([], ["--workers", "2"]):
        files.append(tmp_path / f"{len(extra)}.csv")
        subprocess.run([*RUN, "sweep", "llama-3.1-8b", "h100,a100", "--batch", "1:300", "--input",
                        "64:1024:64", "--output", "1,2,3,4,5,6,7,8", "--columns",
                        "hardware,batch,input,output,fits,tpot_s,e2e_s", "-o", str(files[-1]),
                        *extra], check=True, capture_output=True)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_and_run_again(tmp_path: Path, number: signal.Signals) -> None:
    path, straight = tmp_path / "x.csv", tmp_path / "y.csv"
    command = [*RUN, "sweep", "llama-3.1-8b", "h100,a100,l4", "--batch", "1:300", "--input",
               "64:4096:64", "--output", "1,9,17,33", "--columns",
               "hardware,batch,input,output,fits,ttft_s,tpot_s,e2e_s", "--json", "-o"]
    with subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        note, until = tmp_path / "x.csv.resume", time.monotonic() + 30
        while time.monotonic() < until and not (
                note.exists() and json.loads(note.read_bytes())["blocks"] >= 2):
            time.sleep(0.005)
        os.kill(process.pid, number)
        process.communicate(timeout=20)
    assert process.returncode in (-9, 130)
    if number != signal.SIGKILL:
        text = path.read_bytes()
        assert text.endswith(b"\n")
        assert {line.count(b",") for line in text.splitlines()} == {7}
    again = subprocess.run([*command, str(path)], check=True, capture_output=True)
    found = json.loads(again.stdout)
    assert found["resumed"]
    assert 0 < found["worked_out"] < found["rows"] == 3 * 300 * 64 * 4
    subprocess.run([*command, str(straight)], check=True, capture_output=True)
    assert path.read_bytes() == straight.read_bytes()
    assert len(pd.read_csv(path, usecols=["batch"])) == found["rows"]
