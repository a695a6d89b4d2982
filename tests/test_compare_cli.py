"""`tokline compare` and `tokline solve` from the command line: text, JSON, exit codes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from simulator.cli import run


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    code = run(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


def loads(text: str) -> Any:
    """JSON without NaN or infinity."""
    def refuse(word: str) -> None:
        raise AssertionError(word)
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("args", [
    ("llama-3.1-8b", "--hardware", "a100,h100,b200,mn-core-l1400,2xl40s"),
    ("--models", "llama-3.1-8b,qwen3-30b-a3b", "--hardware", "h100"),
    ("llama-3.1-8b", "--hardware", "h100", "--formats", "bf16,fp8,fp8/fp8/fp8,int4-g128"),
    ("llama-3.1-70b", "--hardware", "h100,mi300x"),
])
def test_text(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    """Every line within 100 columns, the sections there."""
    code, out, _ = call(capsys, "compare", *args, "--max-context", "8k")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    assert " against " in out
    assert "better by batch 1 to 4,096" in out


def test_weights_that_are_widened_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Named once for all chips that could multiply them as they are; not where asked for."""
    args = ("compare", "llama-3.1-8b", "--hardware", "a100,h100,h200", "--max-context", "2k")
    for flags, said in ((("--weights", "fp8"), True), (("--formats", "fp8/bf16"), False),
                        (("--weights", "fp8", "--activations", "bf16"), False), ((), False)):
        code, out, _ = call(capsys, *args, *flags)
        assert code == 0
        line = ("h100-sxm5-80gb, h200-sxm-141gb: Weights are widened to bf16, the default "
                "activations, and multiply there; engines with fp8 kernels for these chips run "
                "such checkpoints at `--activations fp8 --kv bf16`.")
        assert (line in " ".join(out.split())) == said, flags


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Factors multiply to the ratio; per device, per dollar, per watt are there."""
    code, out, _ = call(capsys, "compare", "llama-3.1-8b", "--hardware", "a100,h100", "--json",
                        "--price", "2,4", "--max-context", "8k")
    assert code == 0
    value = loads(out)
    assert value["reference"] == "a100-sxm4-80gb"
    first, second = value["items"]
    for key in ("ttft_s", "tpot_s", "output_tokens_per_s_per_device", "output_tokens_per_usd",
                "output_tokens_per_s_per_watt"):
        assert first[key]["expected"] > 0
    for phase, key in (("prefill", "ttft_s"), ("decode", "tpot_s")):
        entry = value["against"][0][phase]
        assert entry["ratio"] == pytest.approx(second[key]["expected"] / first[key]["expected"])
        assert math.prod(f["ratio"] for f in entry["factors"]) == pytest.approx(entry["ratio"])
    dollars = first["usd_per_million_output_tokens"]["expected"]
    assert first["output_tokens_per_usd"]["expected"] == pytest.approx(1e6 / dollars)
    assert {c["axis"] for c in value["against"][0]["crossovers"]} == {"batch", "context"}


def test_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """No rates for it; exit 1 only where nothing fits; --force prints them."""
    args = ("compare", "llama-3.1-70b", "--hardware", "h100,mi300x", "--json",
            "--max-context", "4k")
    code, out, _ = call(capsys, *args)
    value = loads(out)
    assert code == 0
    assert value["items"][0]["fits"] is False
    assert value["items"][0]["tpot_s"] is None
    assert value["against"][0]["decode"] is None
    code, out, _ = call(capsys, *args, "--force")
    assert loads(out)["against"][0]["decode"]["ratio"] > 0
    code, out, _ = call(capsys, "compare", "llama-3.1-70b", "--hardware", "h100,a100",
                        "--max-context", "4k")
    assert code == 1
    assert "DOES NOT FIT" in out


@pytest.mark.parametrize(("args", "message"), [
    (("--hardware", "h100,a100"), "no model"),
    (("llama-3.1-8b", "--hardware", "h100"), "needs 2 to"),
    (("llama-3.1-8b", "--hardware", "h100,,a100"), "empty entry"),
    (("llama-3.1-8b", "--hardware", "h100,h100"), "stands twice"),
    (("llama-3.1-8b", "--hardware", "h100,a10O"), "unknown hardware"),
    (("llama-3.1-8b", "--hardware", "h100", "--formats", "bf16,fp9"), "unknown number format"),
    (("llama-3.1-8b", "--hardware", "h100", "--formats", "bf16,a/b/c/d"), "is not weights"),
    (("llama-3.1-8b", "--hardware", "h100,a100", "--price", "1,2,3"), "3 prices for 2 devices"),
    (("llama-3.1-8b", "--hardware", "h100,a100", "--price", "x"), "is not a number"),
    (("llama-3.1-8b", "--hardware", "h100,a100", "--max-context", "100"), "is not above 257"),
    (("llama-3.1-8b", "--hardware", "h100,a100", "--max-batch", "0"), "--max-batch"),
    (("llama-3.1-8b", "--hardware", "h100", "--formats", "bf16,fp8", "--weights", "fp8"),
     "exclude each other"),
])
def test_bad_input(capsys: pytest.CaptureFixture[str], args: tuple[str, ...],
                   message: str) -> None:
    """Exit 2, one line on stderr, nothing on stdout."""
    code, out, err = call(capsys, "compare", *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.strip().count("\n") == 0


def test_solve_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict first, the estimate there in full, lines within 100 columns."""
    code, out, _ = call(capsys, "solve", "llama-3.1-8b", "h100", "--find", "memory_bandwidth",
                        "--target", "tpot=5ms")
    assert code == 0
    assert "NEEDED: memory bandwidth" in out
    assert "The estimate there:" in out
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = call(capsys, "solve", "llama-3.1-8b", "h100", "--for", "memory-bandwidth",
                        "--target", "tpot=1ms")
    assert code == 1
    assert "UNREACHABLE" in out
    assert max(map(len, out.splitlines())) <= 100


def test_solve_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The solution with its estimate; null where unreachable, with the limit."""
    code, out, _ = call(capsys, "solve", "llama-3.1-8b", "h100", "--find", "memory-bandwidth",
                        "--target", "tok/s=200", "--json")
    value = loads(out)
    assert code == 0
    assert value["estimate"]["tokens_per_s_per_user"]["expected"] == pytest.approx(200, rel=1e-6)
    code, out, _ = call(capsys, "solve", "llama-3.1-8b", "h100", "--find", "memory-bandwidth",
                        "--target", "tok/s=2000", "--json")
    value = loads(out)
    assert code == 1
    assert (value["value"], value["limit"]["value"]) == (None, None)
    assert value["limit"]["largest_part"] == "overhead"


@pytest.mark.parametrize(("args", "message"), [
    (("--find", "bandwidht"), "unknown quantity"),
    (("--find", "flops", "--target", "tpt=1ms"), "did you mean 'tpot'"),
    (("--find", "flops", "--target", "tpot=1ms", "--figure", "hihg"), "did you mean 'high'"),
    (("--target", "tpot=1ms"), "--find"),
])
def test_solve_bad_input(capsys: pytest.CaptureFixture[str], args: tuple[str, ...],
                         message: str) -> None:
    """Exit 2, one line, nothing on stdout."""
    code, out, err = call(capsys, "solve", "llama-3.1-8b", "h100", *args)
    assert (code, out) == (2, "")
    assert message in err
