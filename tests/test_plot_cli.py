"""`tokline roofline` and `tokline plot`: files, JSON, exit codes, and errors in one line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import run

MODEL = "llama-3.1-8b"
DOCS = Path(__file__).parent.parent / "docs"


def tokline(capsys: Any, *args: str) -> tuple[int, str, str]:
    code = run(list(args))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"),
                                               ("PDF", b"%PDF")])
def test_formats(suffix: str, magic: bytes, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / f"chart.{suffix}"
    code, out, err = tokline(capsys, "plot", "breakdown", MODEL, "h100", "-o", str(target))
    assert (code, err) == (0, "")
    assert target.read_bytes().startswith(magic)
    assert str(target) in out


@pytest.mark.parametrize("command", [
    "roofline", "plot latency", "plot throughput", "plot cost", "plot memory", "plot pareto",
    "plot breakdown", "plot context"])
def test_json_is_the_data(command: str, capsys: Any) -> None:
    code, out, err = tokline(capsys, *command.split(), MODEL, "h100", "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert command.endswith(value["plot"])
    assert value["fits"] is True
    assert value["data"]
    assert "NaN" not in out
    assert "Infinity" not in out


def test_several_devices_and_paths(tmp_path: Path, capsys: Any) -> None:
    code, out, err = tokline(
        capsys, "roofline", MODEL, "a100", "4xh100", "l1400", "--batch", "1,8,64", "--context",
        "1k:4k:x2", "--json", "-o", str(tmp_path / "r.png"), "--theme", "dark", "--transparent")
    assert code == 0
    assert "announced" in err
    rows = json.loads(out)["data"]
    assert {r["device"] for r in rows} == {"A100 SXM4 80 GB", "4 x H100 SXM5 80 GB",
                                           "MN-Core L1400"}
    assert {r["input"] for r in rows if r["series"] == "context path"} == {1024, 2048, 4096}
    assert (tmp_path / "r.png").stat().st_size > 10_000


@pytest.mark.parametrize("command", ["roofline", "plot memory", "plot throughput"])
def test_what_does_not_fit_exits_1(command: str, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "chart.png"
    code, out, err = tokline(capsys, *command.split(), "llama-3.1-405b", "h100", "--json",
                             "-o", str(target))
    assert code == 1
    assert target.exists()
    assert json.loads(out)["fits"] is False
    assert "does not fit" in err


def test_warnings_and_prices(capsys: Any) -> None:
    _, _, err = tokline(capsys, "plot", "breakdown", "gpt2", "a100", "--input", "4k", "--json")
    assert "beyond the 1,024 positions" in err
    _, _, err = tokline(capsys, "roofline", "gpt2", "a100", "--context", "256,8k", "--json")
    assert "beyond the 1,024 positions" in err
    code, out, err = tokline(capsys, "plot", "cost", MODEL, "h100", "l1400", "--json")
    assert code == 0
    assert "MN-Core L1400 has no price: not drawn" in err
    assert {r["hardware"] for r in json.loads(out)["data"]} == {"h100-sxm5-80gb"}
    code, out, err = tokline(capsys, "plot", "cost", MODEL, "h100", "l1400", "--json",
                             "--price", "2,1")
    assert {r["hardware"] for r in json.loads(out)["data"]} == {"h100-sxm5-80gb",
                                                            "mn-core-l1400"}
    assert "no price" not in err


@pytest.mark.parametrize(("args", "message"), [
    ("plot cost M h100 --price x -o TMP/x.png", "--price: 'x' is not a number"),
    ("plot cost M h100 --price 1,2 -o TMP/x.png", "2 prices for 1 devices"),
    ("plot memory M h100 --price 1 -o TMP/x.png", "draws no money"),
    ("plot parto M h100 -o x.png", "did you mean 'pareto'"),
    ("plot pareto M h100 -o x.jpg", "valid: png, svg, pdf|did you mean 'png'"),
    ("plot pareto M h100 -o x", "has no suffix (valid: png, svg, pdf)"),
    ("plot pareto M h100 -o TMP", "is a folder"),
    ("plot pareto M h100 -o TMP/no/x.png", "does not exist"),
    ("plot pareto M h100 -o /proc/x.png", "can't be written"),
    ("plot pareto M h100", "name the picture"),
    ("plot pareto M h100 --batch 0 -o TMP/x.png", "--batch: 0"),
    ("plot pareto M h100 --batch x -o TMP/x.png", "--batch"),
    ("plot pareto M h100 --theme drak -o TMP/x.png", "did you mean 'dark'"),
    ("plot pareto M h100 --slo-tpot 50 -o TMP/x.png", "no unit"),
    ("plot pareto M h100 --slo-tpot 0ms -o TMP/x.png", "above 0"),
    ("plot memory M h100 --slo-tpot 50ms -o TMP/x.png", "no target line"),
    ("plot latency M h100 --context 1k -o TMP/x.png", "--input"),
    ("plot breakdown M h100 --batch 1,2 -o TMP/x.png", "takes one number"),
    ("plot cost M l1400 -o TMP/x.png", "no price"),
    ("plot pareto M h10 -o TMP/x.png", "h10"),
    ("plot pareto lama-3.1-8b h100 -o TMP/x.png", "did you mean"),
    ("roofline M h100 h100 h100 h100 h100 -o TMP/x.png", "takes 1 to 4"),
    ("roofline M h100 --batch 0 -o TMP/x.png", "--batch: 0"),
    ("roofline M h100 --context 0 -o TMP/x.png", "--context: 0"),
    ("roofline M -o TMP/x.png", "HARDWARE"),
])
def test_bad_input_is_one_line(args: str, message: str, tmp_path: Path, capsys: Any) -> None:
    words = [w.replace("TMP", str(tmp_path)).replace("M", MODEL, 1) if w in ("M",) or "TMP" in w
             else w for w in args.split()]
    code, out, err = tokline(capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert any(m in err for m in message.split("|"))
    assert not list(tmp_path.glob("x*"))


def commands() -> list[list[str]]:
    text = (DOCS / "plots.md").read_text()
    return [shlex.split(line) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
            for line in block.replace("\\\n", " ").splitlines() if line.startswith("tokline")]


def test_every_picture_has_its_command() -> None:
    text = (DOCS / "plots.md").read_text()
    shown = set(re.findall(r"\((images/[^)]+)\)", text))
    made = {c[c.index("-o") + 1].removeprefix("docs/") for c in commands()}
    assert shown == made
    others = {"images/accuracy.png", "images/accuracy-steps.png",    # docs/accuracy.py
              "images/executor.png"}    # docs/executor.py
    assert {f"images/{p.name}" for p in (DOCS / "images").iterdir()} == made | others
    for name in made:
        assert (DOCS / name).stat().st_size <= 200_000


@pytest.mark.parametrize("words", commands(), ids=lambda w: Path(w[w.index("-o") + 1]).stem)
def test_commands_of_the_docs_run(words: list[str], tmp_path: Path, capsys: Any) -> None:
    at = words.index("-o") + 1
    words[at] = str(tmp_path / Path(words[at]).name)
    code, _, _ = tokline(capsys, *words[1:])
    assert code in (0, 1)
    assert Path(words[at]).exists()
