"""`tokline validate`: text, JSON, the table of all rows, the chart, and errors in one line."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import run
from simulator.errors import InputError
from simulator.validation import package
from simulator.validation.measurements import COLUMNS, read_rows, write_rows
from simulator.validation.reasons import reason
from simulator.validation.report import CSV_COLUMNS, percent
from simulator.validation.run import PACKAGED, validate

PHASES = ["batch1_decode", "prefill", "static_throughput", "max_throughput", "tpot", "ttft"]
LINE = {"name", "n", "covered", "scored", "sources", "median_abs_ln", "p90_abs_ln", "bias_ln",
        "in_range", "pooled_median_abs_ln"}
BASE = {"source": "invented", "source_date": "2025-11", "hardware": "NVIDIA H100 SXM 80GB",
        "n_devices": "1", "engine": "vLLM", "engine_version": "0.10", "model": "Llama-3.1-8B",
        "dtype_weights": "bf16", "batch_or_concurrency": "1", "input_len": "1024",
        "output_len": "256", "quality": "A"}  # fmt: skip
ROWS: list[dict[str, str]] = [
    {"id": "a", "metric": "decode_tok_s_per_user", "value": "140"},
    {"id": "b", "metric": "tpot_ms", "value": "9", "batch_or_concurrency": "16"},
    {"id": "c", "metric": "ttft_ms", "value": "300", "batch_or_concurrency": "16"},
    {"id": "d", "metric": "throughput_out_tok_s", "value": "2000", "batch_or_concurrency": "32",
     "source": "another"},
    {"id": "e", "metric": "prefill_tok_s", "value": "30000"},
    {"id": "f", "metric": "decode_tok_s_per_user", "value": "5000", "model": "Llama-2-7b"},
    {"id": "g", "metric": "tpot_ms", "value": "7", "quality": "C"},
    {"id": "h", "metric": "tpot_ms", "value": "7", "model": "Llama-9-8B"},
    {"id": "i", "metric": "mood", "value": "7"},
    {"id": "j", "metric": "throughput_out_tok_s", "value": "9000", "batch_or_concurrency": ""},
]  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "m.csv"
    write_rows(path, [dict(BASE) | row for row in ROWS])
    return path


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    code = run(["validate", *args])
    out = capsys.readouterr()
    return code, out.out, out.err


def loads(text: str) -> Any:
    """JSON without NaN or infinity."""
    def refuse(word: str) -> None:
        raise AssertionError(word)
    return json.loads(text, parse_constant=refuse)


def test_text(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was read, then phases, sources, reasons, the worst, and what is left out."""
    code, out, err = call(capsys, str(tiny))
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    places = [out.index(words) for words in (
        "10 measured figures of", "7 of 9 of quality A or B are predicted (78 %)", "phase ",
        "decode, batch 1", "source ", "invented", "Bias above 0", "Not covered, 2 rows",
        "model not in the catalogue: Llama-9-8B", "Furthest off", "beats the ceiling",
        "Excluded from every figure above: 1 row of quality C")]
    assert places == sorted(places)
    assert "0.10 is about 10 %" in " ".join(out.split())
    assert "x too slow" in out


def test_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, str(tiny), "--json")
    assert (code, err) == (0, "")
    value = loads(out)
    assert {"schema_version", "files", "include_fitted", "coverage", "phases", "sources", "fitted",
            "quality_c", "not_covered", "worst", "wall_s", "csv", "chart"} == set(value)
    assert value["files"] == [str(tiny)]
    assert [p["name"] for p in value["phases"]][:6] == PHASES
    assert [s["name"] for s in value["sources"]] == ["another", "invented"]
    for line in (*value["phases"], *value["sources"], value["fitted"], value["quality_c"]):
        assert set(line) == LINE
        assert line["scored"] <= line["covered"] <= line["n"]
        assert (line["median_abs_ln"] is None) == (line["scored"] == 0)
        if line["scored"]:
            assert 0 <= line["in_range"] <= 1
            assert abs(line["bias_ln"]) <= line["median_abs_ln"] + 1e-9
    assert value["coverage"] == {"rows": 10, "rows_a_b": 9, "covered": 7, "counted": 7,
                                 "sources": 2, "devices": 1, "models": 2}
    assert value["not_covered"] == {
        "metric without a prediction: mood": 1,
        next(r for r in value["not_covered"] if r.startswith("model not in")): 1}
    assert (value["quality_c"]["n"], value["quality_c"]["covered"]) == (1, 1)
    assert value["wall_s"] > 0


def test_the_worst(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The impossible rate comes first, with the reason; signs say which way."""
    _, out, _ = call(capsys, str(tiny), "--json")
    worst = loads(out)["worst"]
    first = worst[0]
    assert first["id"] == "f"
    assert first["ln_error"] == pytest.approx(math.log(first["predicted"] / 5000))
    assert first["low"] < first["predicted"] < first["high"] < first["ceiling"] < 5000
    assert "beats the ceiling" in first["reason"]
    assert [abs(w["ln_error"]) for w in worst] == sorted(
        (abs(w["ln_error"]) for w in worst), reverse=True)
    assert len({(w["source"], w["device"], w["model"]) for w in worst}) == len(worst)


@pytest.mark.parametrize(("changes", "fact"), [
    ({"batch_or_concurrency": "4000", "input_len": "8192"}, "sequences fit by this count of mem"),
    ({"batch_or_concurrency": "4000", "input_len": "16", "output_len": "16"},
     "the profile of the engine takes "),
    ({"engine": "transformers", "engine_version": "4.45"}, "an eager engine"),
    ({"n_devices": "4", "tp": "2", "batch_or_concurrency": "8"}, "data-parallel (2 ranks)"),
    ({"n_devices": "16", "tp": "16"}, "several nodes"),
    ({"notes": "x; WARNING: clocks unlocked; y"}, "the source's note: WARNING: clocks unlocked"),
    ({"metric": "ttft_ms", "batch_or_concurrency": "4"}, "how the requests arrive"),
    ({"metric": "decode_tok_s_per_user", "batch_or_concurrency": "1", "input_len": "",
      "output_len": ""}, "128 + 128 assumed"),
    ({"value": "1"}, "beats the ceiling"),
    ({}, ""),
])
def test_reasons(changes: dict[str, str], fact: str, tmp_path: Path) -> None:
    """Each is a fact of the row; a plain row has none."""
    path = tmp_path / "m.csv"
    plain = {"metric": "tpot_ms", "value": "300", "batch_or_concurrency": "8"}
    write_rows(path, [dict(BASE) | plain | changes])
    (row,) = validate([path]).scored
    found = reason(row)
    assert fact in found
    if not changes:
        # Whether rows of the device were fitted is the one thing that a fit may change.
        assert found == "" or found.startswith(("no row of the h100", "nothing like the h100"))


def test_every_row_in_a_table(tiny: Path, tmp_path: Path,
                              capsys: pytest.CaptureFixture[str]) -> None:
    """All columns of the file and what was predicted; the table can be read again."""
    target = tmp_path / "rows.csv"
    code, out, _ = call(capsys, str(tiny), "--csv", str(target))
    assert code == 0
    assert f"{target} written" in out
    with open(target, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = {r["id"]: r for r in reader}
        assert tuple(reader.fieldnames or ()) == CSV_COLUMNS
    assert CSV_COLUMNS[:len(COLUMNS)] == COLUMNS
    assert list(rows) == [r["id"] for r in ROWS]
    a, h = rows["a"], rows["h"]
    assert (a["phase"], a["covered"], a["fitted"]) == ("batch1_decode", "true", "false")
    assert (a["value"], a["input_len"], a["n_devices"]) == ("140", "1024", "1")
    low, predicted, high = (float(a[k]) for k in ("low", "predicted", "high"))
    assert low < predicted < high < float(a["ceiling"]) * 1.5
    assert float(a["ln_error"]) == pytest.approx(math.log(predicted / 140), abs=1e-5)
    assert a["in_range"] == ("true" if low <= 140 <= high else "false")
    assert (h["covered"], h["predicted"], h["ln_error"], h["in_range"]) == ("false", "", "", "")
    assert h["reason_not_covered"].startswith("model not in the catalogue")
    assert (h["phase"], rows["j"]["phase"]) == ("batch1_decode", "max_throughput")
    assert rows["g"]["covered"] == "true"
    assert len(read_rows(target)) == len(ROWS)
    _, again, _ = call(capsys, str(target), "--json")
    _, first, _ = call(capsys, str(tiny), "--json")
    assert loads(again)["phases"] == loads(first)["phases"]


def test_several_files(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "n.csv"
    write_rows(other, [dict(BASE) | ROWS[0] | {"source": "third"}])
    _, out, _ = call(capsys, str(tiny), str(other), "--json")
    value = loads(out)
    assert value["files"] == [str(tiny), str(other)]
    assert value["coverage"]["rows"] == 11
    assert [s["name"] for s in value["sources"]] == ["another", "invented", "third"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_chart(theme: str, tiny: Path, tmp_path: Path,
               capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "chart.png"
    code, out, err = call(capsys, str(tiny), "-o", str(target), "--theme", theme, "--json")
    assert (code, err) == (0, "")
    assert loads(out)["chart"] == str(target)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_impossible_rows_are_not_scored(tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """Of a metric that isn't known, a pool without room, another unit: reasons, no prediction."""
    path = tmp_path / "m.csv"
    write_rows(path, [dict(BASE) | row for row in (
        {"metric": "mood", "value": "7"},
        {"metric": "kv_tokens_capacity", "value": "7", "batch_or_concurrency": "60000",
         "hardware": "NVIDIA L40S"},
        {"metric": "decode_tok_s_per_user", "value": "1e7"},
        {"metric": "tpot_ms", "value": "0.001"},
        {"metric": "tpot_ms", "value": "9000"})])
    code, out, err = call(capsys, str(path), "--json")
    assert (code, err) == (0, "")
    value = loads(out)
    assert value["not_covered"] == {
        "metric without a prediction: mood": 1,
        "no room for a KV cache by this count of memory": 1,
        "better than physics allows by more than 30 times: another unit?": 2}
    lines = {p["name"]: (p["n"], p["covered"]) for p in value["phases"]}
    assert (lines["other"], lines["memory"], lines["static_throughput"]) == ((1, 0), (1, 0), (0, 0))
    assert lines["batch1_decode"] == (3, 1)
    _, out, _ = call(capsys, str(path))
    assert "other metrics" in out


def test_nothing_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer too: exit 0, null where there is no figure, and a warning."""
    path = tmp_path / "m.csv"
    write_rows(path, [dict(BASE) | ROWS[7]])
    code, out, err = call(capsys, str(path), "--json")
    assert code == 0
    assert "no row could be predicted" in err
    assert all(p["median_abs_ln"] is None for p in loads(out)["phases"])
    code, out, _ = call(capsys, str(path))
    assert code == 0
    assert "0 of 1 of quality A or B are predicted (0 %)" in out


@pytest.mark.parametrize(("content", "message"), [
    ("", "the file is empty"),
    ("source,hardware,model,value\na,b,c,1\n", "column 'metric' is missing"),
    ("source,hardware,model,metric,value\na,b,c,req_s,nan\n", "line 2: value: nan is not finite"),
    ("source,hardware,model,metric,value\na,b,c,req_s,-1\n", "line 2: value: -1 must be above 0"),
    ("source,hardware,model,metric,value,tp\na,b,c,req_s,1,-2\n", "line 2: tp: -2 is not a count"),
])
def test_bad_files(content: str, message: str, tmp_path: Path,
                   capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    for more in ((), ("--json",)):
        code, out, err = call(capsys, str(path), *more)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert f"{path}: {message}" in err


@pytest.mark.parametrize(("args", "message"), [
    ("none.csv", "none.csv: can't be read"),
    ("TMP", "is a folder"),
    ("IN --csv TMP", "--csv: 'TMP' is a folder"),
    ("IN --csv TMP/no/rows.csv", "can't be written"),
    ("IN --csv /proc/rows.csv", "--csv: '/proc/rows.csv' can't be written"),
    ("IN --csv IN", "--csv: 'IN' is named twice"),
    ("--csv PACKAGED", "is named twice"),
    ("IN --csv TMP/x.png -o TMP/x.png", "-o: 'TMP/x.png' is named twice"),
    ("IN -o TMP/x.gif", "no picture format"),
    ("IN -o TMP/no/x.png", "does not exist"),
    ("IN -o /proc/x.png", "-o: '/proc/x.png' can't be written"),
    ("IN -o TMP/x.png --theme drak", "did you mean 'dark'"),
    ("IN --theme drak", "did you mean 'dark'"),
    ("IN --jsn", "no such option: --jsn"),
])
def test_bad_input(args: str, message: str, tiny: Path, tmp_path: Path,
                   capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, one line, nothing on stdout, and nothing written."""
    def words(text: str) -> str:
        places = {"TMP": str(tmp_path), "IN": str(tiny), "PACKAGED": str(PACKAGED)}
        return re.sub(r"\b(TMP|IN|PACKAGED)\b", lambda m: places[m.group()], text)

    code, out, err = call(capsys, *words(args).split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words(message) in err
    assert [p.name for p in tmp_path.iterdir()] == ["m.csv"]
    assert len(read_rows(tiny)) == len(ROWS)


def test_paths_are_checked_before_the_work(tiny: Path, tmp_path: Path, monkeypatch: Any,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("worked first")

    monkeypatch.setattr("simulator.validation.run.validate", never)
    code, _, err = call(capsys, str(tiny), "--csv", str(tmp_path / "no" / "rows.csv"))
    assert code == 2
    assert "can't be written" in err


def test_packaged(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file: rows that no constant was fitted on, of many sources, quickly."""
    code, out, err = call(capsys, "--json")
    assert (code, err) == (0, "")
    value = loads(out)
    c = value["coverage"]
    assert c["counted"] >= 1500
    assert c["sources"] >= 12
    assert c["devices"] >= 25
    assert c["models"] >= 20
    assert value["wall_s"] < 30
    assert (value["fitted"]["n"], value["quality_c"]["n"]) == (0, 0)
    assert value["not_covered"] == {}
    phases = {p["name"]: p for p in value["phases"]}
    assert all(phases[name]["scored"] > 0 for name in PHASES)
    most = max(s["n"] for s in value["sources"])
    assert most < 0.3 * c["rows"]


def test_packaged_rows_say_where_they_are_from() -> None:
    rows = read_rows(PACKAGED)
    assert all(r.id and r.source and r.date and r.licence for r in rows)
    assert all(len(r.notes) <= package.NOTES for r in rows)
    assert all(r.quality in "AB" for r in rows)
    assert len({r.id for r in rows}) == len(rows)


def test_package_needs_enough(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows to package, at least 1,500 are needed"):
        package.package([str(tiny)], str(tmp_path / "out.csv"))
    assert not (tmp_path / "out.csv").exists()


def test_package_spreads_what_it_takes(tiny: Path) -> None:
    """A cap on each source, phase and deployment; the same rows whatever their order."""
    rows = read_rows(tiny)
    cases = package.candidates(rows)
    assert sorted(c.row.id for c in cases) == ["a", "b", "c", "d", "e", "f", "j"]
    assert package.chosen(cases) == package.chosen(cases[::-1])
    many = [c for c in cases if c.row.id == "b"] * 50 + [c for c in cases if c.row.id == "d"]
    assert len(package.chosen(many, most=20)) == 20


def test_notes_keep_what_conditions_the_figure() -> None:
    notes = package.conditions("bench.csv; id=x_y; latency_s=2.7; static batch; model_bytes=4096; "
                               "static batch; " + "x" * 130)
    assert notes == "model_bytes=4096; static batch"
    known = "id=x; InferenceX/InferenceMAX db-dump; agg tp=8"
    assert package.conditions(known) == "InferenceX/InferenceMAX db-dump; agg tp=8"
    assert package.conditions("") == ""


def test_percent() -> None:
    assert [percent(x) for x in (0.0, 0.1, -0.1, math.log(3))] == ["0 %", "11 %", "11 %", "200 %"]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert re.search(r"--include-fitted", out)
