"""The command line: one JSON value, exit codes, and every mistake as one line on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import run
from simulator.specs.engine import load_engine
from simulator.units import format_time

TEXTBOOK = ("7b-fp16", "textbook-2tbs")
LLAMA = ("llama-3.1-8b", "h100-sxm")


class Result:
    """Exit code and both streams of one command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """The one JSON value on stdout."""
        def refuse(word: str) -> None:
            raise AssertionError(word)
        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def tokline(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: object) -> Result:
        code = run([str(a) for a in args])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)
    return call


def refused(result: Result, *words: str) -> None:
    assert result.code == 2, (result.code, result.out[:300], result.err[:300])
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("tokline: ")
    assert "Traceback" not in result.err
    assert lines[0].isprintable()
    assert len(lines[0]) < 1000
    for word in words:
        assert word in lines[0], lines[0]


# answers

def test_json_alone_on_stdout(tokline: Any) -> None:
    r = tokline("estimate", *LLAMA, "--json")
    assert r.code == 0
    assert r.json["model"] == "llama-3.1-8b"
    assert r.json["hardware"] == "h100-sxm5-80gb"
    assert r.err == ""


def test_defaults(tokline: Any) -> None:
    a = tokline("estimate", *LLAMA, "--json").json
    b = tokline("estimate", *LLAMA, "--json", "--engine", "vllm", "--batch", 1, "--input", "1k",
                "--output", 256, "--tp", 1, "--activations", "bf16", "--prefix-hit", 0).json
    assert a == b


def test_warnings_go_to_stderr(tokline: Any) -> None:
    r = tokline("estimate", *TEXTBOOK, "--json")
    assert r.code == 0
    assert r.json["memory"]["fits"] is True
    assert "hypothetical" in r.err


def test_what_does_not_fit_exits_1(tokline: Any) -> None:
    plain = tokline("estimate", "llama-3.1-70b", "h100", "--json")
    forced = tokline("estimate", "llama-3.1-70b", "h100", "--json", "--force")
    assert plain.code == forced.code == 1
    assert plain.json["output_tokens_per_s"] is None
    assert forced.json["output_tokens_per_s"]["expected"] > 0
    text = tokline("estimate", "llama-3.1-70b", "h100")
    assert text.code == 1
    assert "DOES NOT FIT" in text.out
    assert "tok/s" not in text.out
    assert "tok/s" in tokline("estimate", "llama-3.1-70b", "h100", "--force").out
    memory = tokline("memory", "llama-3.1-70b", "h100", "--json")
    assert memory.code == 1
    assert memory.json["memory"]["fits"] is False


def test_devices_in_front(tokline: Any) -> None:
    a = tokline("estimate", "llama-3.1-70b", "4xh100-sxm", "--json")
    assert a.code == 0
    assert a.json["parallelism"]["tp"] == 4
    assert a.json["devices"] == 4
    assert tokline("estimate", "llama-3.1-70b", "h100-sxm", "--tp", 4, "--json").json == a.json
    two = tokline("estimate", "llama-3.1-8b", "4xh100", "--tp", 2, "--dp", 2, "--json").json
    assert (two["devices"], two["parallelism"]["tp"], two["parallelism"]["dp"]) == (4, 2, 2)


@pytest.mark.parametrize("flags", [("--tp", "2"), ("--tp", "8"), ("--dp", "2"),
                                   ("--tp", "2", "--pp", "4")])
def test_devices_and_flags_that_disagree(tokline: Any, flags: Any) -> None:
    refused(tokline("estimate", "llama-3.1-70b", "4xh100-sxm", *flags, "--json"), "4 devices")


def test_price_and_prefix(tokline: Any) -> None:
    cheap, dear = (tokline("estimate", *LLAMA, "--price", p, "--json").json for p in (1, 3))
    assert dear["usd_per_million_output_tokens"]["expected"] == pytest.approx(
        3 * cheap["usd_per_million_output_tokens"]["expected"])
    hit = tokline("estimate", *LLAMA, "--prefix-hit", 0.5, "--json").json
    assert hit["ttft_s"]["expected"] < cheap["ttft_s"]["expected"]
    assert hit["workload"]["prefix_hit"] == 0.5


def test_formats(tokline: Any) -> None:
    a = tokline("estimate", *LLAMA, "--weights", "int4-g128", "--kv", "fp8", "--json").json
    b = tokline("estimate", *LLAMA, "--json").json
    assert a["memory"]["weights_bytes"] < 0.4 * b["memory"]["weights_bytes"]
    assert a["memory"]["kv_bytes"] == b["memory"]["kv_bytes"] / 2
    assert a["prefill"]["flops"] == pytest.approx(b["prefill"]["flops"], rel=1e-9)


def test_weights_that_are_widened_by_default(tokline: Any) -> None:
    """Said at the head, with what the chip's own precision gives as the first of the changes."""
    told = ("Weights are widened to bf16, the default activations, and multiply there; engines "
            "with fp8 kernels for this chip run such checkpoints at `--activations fp8 --kv bf16`: "
            "the first of the single changes below.")
    fp8, native = (*LLAMA, "--weights", "fp8", "--input", 4096), ("--activations", "fp8", "--kv",
                                                                  "bf16")
    text = tokline("estimate", *fp8).out
    assert told in " ".join(text[:text.index("FITS")].split())
    first = text[text.index("Single changes"):].splitlines()[1].split()
    after = tokline("estimate", *fp8, *native).out
    assert "widened" not in after
    assert first[:2] == ["fp8", "activations"]
    row = next(x for x in after.splitlines() if x.startswith("  TTFT (no queue)")).split()
    assert first[first.index("TTFT") + 1:][:2] == [row[3], f"{row[4]},"]
    now, then = (tokline("estimate", *fp8, *flags, "--json").json for flags in ((), native))
    assert then["ttft_s"]["expected"] < 0.8 * now["ttft_s"]["expected"]
    assert now["formats"]["native_activations"] == "fp8"
    assert then["formats"]["native_activations"] is None
    assert now["memory"]["kv_bytes"] == then["memory"]["kv_bytes"]
    for pair, flags in ((LLAMA, ("--weights", "fp8", "--activations", "bf16")), (LLAMA, ()),
                        (("llama-3.1-8b", "a100"), ("--weights", "fp8"))):
        assert "widened" not in tokline("estimate", *pair, *flags).out


def test_ttft_at_the_client(tokline: Any) -> None:
    """A line of its own for servers; the time a request takes there, and JSON of both."""
    found = tokline("estimate", *LLAMA, "--json").json
    fixed = found["request_time_s"]
    assert fixed == load_engine("vllm").request_time > 0.0
    assert found["client_ttft_s"]["expected"] == pytest.approx(
        found["ttft_s"]["expected"] + fixed, rel=1e-12)
    assert found["client_ttft_s"]["ceiling"] == found["ttft_s"]["ceiling"]
    text = " ".join(tokline("estimate", *LLAMA).out.split())
    assert "TTFT at the client" in text
    assert f"+{format_time(fixed)} in the server" in text
    assert f"whose constants add {format_time(fixed)} a request at the client;" in text
    bare = tokline("estimate", *LLAMA, "--engine", "ideal").out
    assert "at the client" not in bare
    found = tokline("estimate", *LLAMA, "--engine", "ideal", "--json").json
    assert (found["request_time_s"], found["client_ttft_s"]) == (0.0, found["ttft_s"])


def test_the_range_of_a_short_prompt_is_its_own(tokline: Any) -> None:
    for length, key, words in ((511, "prefill_short", " on prefill of less than 512 tokens held"),
                               (512, "prefill", " on prefill held")):
        flags = (*LLAMA, "--input", length)
        spread = tokline("estimate", *flags, "--json").json["basis"]["spread"]
        text = " ".join(tokline("estimate", *flags).out.split())
        assert f"x{spread[key]:g}{words}" in text


def test_paths(tokline: Any) -> None:
    root = Path(__file__).parent.parent
    by_path = tokline("estimate", root / "models" / "llama-3.1-8b.yaml",
                      root / "hardware" / "h100-sxm5-80gb.yaml", "--json")
    assert by_path.json == tokline("estimate", *LLAMA, "--json").json


# text

PAIRS = [
    LLAMA, TEXTBOOK, ("deepseek-v3", "8xh200-sxm-141gb"), ("llama-3.1-70b", "h100"),
    ("llama-3.1-70b", "mn-core-l1400"), ("llama-3.1-405b", "16xgb200"), ("gpt2", "t4"),
    ("nemotron-3-ultra-550b-a55b", "8xrubin-nvl72"), ("gemma-3-27b", "apple-m4"),
    ("qwen3-coder-480b-a35b", "tpu-v7-ironwood"), ("falcon-mamba-7b", "rtx-4090-24gb"),
    ("llama-4-maverick", "8xb200"), ("jamba-1.5-large", "data-center-gpu-max-1550"),
    ("llama-3.2-11b-vision", "rtx-pro-6000-blackwell-server"), ("opt-175b", "cerebras-wse-3"),
]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("flags", [(), ("--batch", "1000000", "--input", "100k", "--output", "9k"),
                                   ("--output", "1"), ("--price", "1234.5", "--prefix-hit", "0.9")],
                         ids=["default", "huge", "one", "priced"])  # fmt: skip
def test_text_is_at_most_100_columns(tokline: Any, pair: Any, flags: Any) -> None:
    r = tokline("estimate", *pair, "--explain", "--force", *flags)
    assert r.code in (0, 1), r.err
    assert r.out
    assert max(map(len, r.out.splitlines())) <= 100
    assert "nan" not in r.out.lower().split()
    text = tokline("memory", *pair, *([] if "--price" in flags else flags))
    assert max(map(len, text.out.splitlines())) <= 100


def test_the_textbook_page(tokline: Any) -> None:
    """What one needs to redo it on paper: each number with the formula it goes into."""
    page = tokline("estimate", *TEXTBOOK, "--engine", "ideal", "--explain").out
    for line in ("C/W = 312 TFLOP/s / 2.00 TB/s = 156 FLOP/byte",
                 "7.00e9 values x 2 B (fp16)",
                 "14.0 GB / 2.00 TB/s = 7.00 ms -> 143 tok/s",
                 "458,752 B/token",
                 "TTFT + (output - 1) x TPOT",
                 "sum over operations of max(F/C, Q/W), memory-bound",
                 "2(d_k+d_v) a head and visible query-key pair",
                 "DECODE, BY OPERATION", "PREFILL, BY OPERATION", "mlp_gate_up"):
        assert line in page, line


def test_verdict_first(tokline: Any) -> None:
    lines = tokline("estimate", *LLAMA).out.splitlines()
    verdict = next(i for i, line in enumerate(lines) if line.startswith("FITS"))
    assert verdict < next(i for i, line in enumerate(lines) if "TPOT" in line)


# mistakes

@pytest.mark.parametrize(("args", "words"), [
    ((), ()),
    (("estimat", *LLAMA), ("estimate",)),
    (("estimate",), ("MODEL",)),
    (("estimate", "llama-3.1-8b"), ("HARDWARE",)),
    (("estimate", *LLAMA, "extra"), ("extra",)),
    (("estimate", *LLAMA, "--bach", "2"), ("--batch",)),
    (("estimate", *LLAMA, "--batch"), ("--batch",)),
    (("estimate", "lama-3.1-8b", "h100"), ("llama-3.1-8b",)),
    (("estimate", "llama-3.1-8b", "h10"), ("h100",)),
    (("estimate", "llama-3.1-8b", "h100", "--engine", "vlm"), ("vllm",)),
    (("estimate", "llama-3.1-8b", "h100", "--weights", "bf61"), ("bf16",)),
    (("estimate", "llama-3.1-8b", "h100", "--activations", "int4-g128"), ("activations",)),
    (("estimate", "llama-3.1-8b", "h100", "--kv", ""), ("kv",)),
    (("estimate", "", ""), ()),
    (("estimate", "x" * 5000, "h100"), ()),
    (("estimate", "llama-3.1-8b", "y" * 5000), ()),
    (("estimate", *LLAMA, "--engine", "z" * 5000), ()),
    (("estimate", "a\nb\tc\x1b[31m", "h100"), ()),
    (("estimate", "llama-3.1-8b", "0xh100"), ()),
    (("estimate", "llama-3.1-8b", "99999xh100"), ()),
    (("estimate", "llama-3.1-8b", "-4xh100"), ()),
    (("estimate", "llama-3.1-8b", "3xh100"), ("tp",)),
    (("estimate", "no/such/model.yaml", "h100"), ("no such file",)),
    (("estimate", "llama-3.1-8b", "no/such/hardware.yaml"), ("no such file",)),
    (("estimate", *LLAMA, "--engine", "no/such/engine.yaml"), ("no such file",)),
    (("memory", "lama", "h100"), ()),
    (("hardware", "show", "h10"), ("h100",)),
    (("models", "show", "lama-3.1-8b"), ("llama-3.1-8b",)),
    (("models", "import", "no-such-file"), ("no such file",)),
    (("hardware", "list", "--memory", "80"), ("unit",)),
    (("hardware", "list", "--sort", "colour"), ("sort",)),
    (("estimate", *TEXTBOOK, "--tp", "2"), ("link",)),
])  # fmt: skip
def test_mistakes(tokline: Any, args: Any, words: Any) -> None:
    if not args:
        assert tokline().code in (0, 2)
        return
    refused(tokline(*args), *words)
    if args[0] in ("estimate", "memory"):
        refused(tokline(*args, "--json"))


NUMBERS = ["0", "-1", "1.5", "x", "", "nan", "inf", "1e9", "99999999999999999999", "1,2", "1:4",
           "0x10", " ", "1k1", "½", "1_000", "9" * 400]


@pytest.mark.parametrize("value", NUMBERS, ids=[n[:12] for n in NUMBERS])
@pytest.mark.parametrize("flag", ["--batch", "--input", "--output", "--tp", "--dp"])
def test_bad_counts(tokline: Any, flag: str, value: str) -> None:
    refused(tokline("estimate", *LLAMA, flag, value, "--json"), flag)


@pytest.mark.parametrize(("flag", "value"), [
    ("--prefix-hit", "-0.1"), ("--prefix-hit", "1.1"), ("--prefix-hit", "nan"),
    ("--prefix-hit", "x"), ("--price", "-1"), ("--price", "inf"), ("--price", "nan"),
    ("--price", "2 USD/h"), ("--price", ""), ("--price", "1e999"),
])  # fmt: skip
def test_bad_reals(tokline: Any, flag: str, value: str) -> None:
    refused(tokline("estimate", *LLAMA, flag, value, "--json"), flag)


CONTENTS = {
    "empty": b"", "binary": bytes(range(256)) * 40, "nul": b"\x00" * 100, "utf16": "a: 1".encode(
        "utf-16"), "list": b"- 1\n- 2\n", "scalar": b"hello", "broken": b"a: [1, {b\n",
    "duplicate": b"name: a\nname: b\n", "missing": b"name: x\n", "deep": b"[" * 5000,
    "anchors": b"a: &a [1]\nb: *a\n", "unknown": b"name: x\ncolour: red\n",
    "negative": b"name: x\nmemory_bandwidth: -2 TB/s\nmemory_capacity: 80 GB\n"
                b"peak_bf16: 1 TFLOP/s\nhidden: -1\n",
    "no unit": b"name: x\nmemory_bandwidth: 2000\nmemory_capacity: 80\npeak_bf16: 1\nhidden: 1\n",
    "infinite": b"name: x\nmemory_bandwidth: .inf\nmemory_capacity: 1e999 GB\npeak_bf16: .nan\n",
    "huge": b"name: x\nhidden: " + b"9" * 5000 + b"\nmemory_bandwidth: " + b"9" * 5000 + b" TB/s\n",
    "tag": b"!!python/object/apply:os.system ['echo no']\n",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("place", ["model", "hardware", "engine"])
def test_bad_files(tokline: Any, tmp_path: Path, place: str, content: bytes) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    model, hardware = LLAMA
    args = {"model": (path, hardware), "hardware": (model, path),
            "engine": (*LLAMA, "--engine", path)}[place]
    refused(tokline("estimate", *args, "--json"))


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b"1", b'{"model_type": "llama"}', b'{"model_type": "unheard-of"}',
    b'{"architectures": ["LlamaForCausalLM"], "hidden_size": -1}', bytes(range(256)),
    b'{"model_type": "llama", "hidden_size": 1e400}', b"[" * 100_000,
    b'{"model_type": "llama", "hidden_size": "4096", "num_hidden_layers": null}',
], ids=range(12))
def test_bad_config(tokline: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    refused(tokline("estimate", path, "h100", "--json"))
    refused(tokline("estimate", tmp_path, "h100", "--json"))


def test_bad_gguf(tokline: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content in (b"", b"GGUF", b"GGUF" + b"\xff" * 60, b"\x00" * 64):
        path.write_bytes(content)
        refused(tokline("estimate", path, "h100", "--json"))


def test_folders(tokline: Any, tmp_path: Path) -> None:
    refused(tokline("estimate", tmp_path, "h100"))
    refused(tokline("estimate", "llama-3.1-8b", tmp_path))
    folder = tmp_path / "x.yaml"
    folder.mkdir()
    refused(tokline("estimate", "llama-3.1-8b", folder))
    refused(tokline("estimate", *LLAMA, "--engine", folder))


def test_a_bug_exits_70(tokline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash inside is told apart from bad input: one line, 70, and no traceback."""
    monkeypatch.delenv("TOKLINE_DEBUG", raising=False)
    import simulator.request

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(simulator.request, "estimate", broken)
    r = tokline("estimate", *LLAMA, "--json")
    assert r.code == 70
    assert r.out == ""
    assert len(r.err.splitlines()) == 1
    assert "ZeroDivisionError" in r.err


# catalogue

def test_lists(tokline: Any) -> None:
    for kind in ("hardware", "models"):
        r = tokline(kind, "list", "--json")
        assert r.code == 0
        assert all(isinstance(row["name"], str) for row in r.json)
    names = {row["name"] for row in tokline("hardware", "list", "--json").json}
    assert {"a100-sxm4-80gb", "h100-sxm5-80gb", "mn-core-l1400"} <= names


def test_show(tokline: Any) -> None:
    h = tokline("hardware", "show", "mn-core-l1400", "--json").json
    assert h["memory_bandwidth"]["mid"] == 25.6e12 or (
        h["memory_bandwidth"].get("value", {}) == {"low": 12.8e12, "mid": 25.6e12, "high": 40e12})
    m = tokline("models", "show", "llama-3.1-8b", "--json").json
    assert m["parameters_total"] == 8_030_261_248
    assert m["kv_bytes_per_token"] == 131_072
    assert set(m["kv_bytes_at"]) >= {"8192", "32768", "131072"}


# start-up

def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("args", [["--help"], ["estimate", "--help"], ["--version"],
                                  ["models", "list", "--help"]], ids=" ".join)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    done = python(f"""
import sys
from simulator.cli import run
code = run({args!r})
heavy = [m for m in ("numpy", "pandas", "matplotlib", "torch", "rich") if m in sys.modules]
print(code, heavy, file=sys.stderr)
""")
    assert done.stderr.strip() == "0 []"
    assert done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_the_program() -> None:
    program = Path(sys.executable).parent / "tokline"
    if not program.exists():
        pytest.skip("the script is not installed")
    done = subprocess.run([program, "estimate", *LLAMA, "--json"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["hardware"] == "h100-sxm5-80gb"
    assert subprocess.run([program, "estimate", "x", "y"], capture_output=True,
                          check=False).returncode == 2
