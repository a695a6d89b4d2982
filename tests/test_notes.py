"""Notes: what the words of a row tell of how it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.specs.catalogue import load_hardware
from simulator.validation.measurements import Row
from simulator.validation.names import UnknownError
from simulator.validation.notes import all_at_once, check_notes, check_processor, says_served

ROW = Row("T1", "s", "2025-11", "", "NVIDIA H100 SXM 80GB", 1, "vLLM", "0.10", "Llama-3.1-8B",
          "bf16", "", None, None, None, 8.0, "", 1024.0, 256.0, "tpot_ms", 10.0, "A", "")


@pytest.mark.parametrize(("notes", "reason"), [
    ("MTP enabled with 3 draft tokens", "speculative"), ("EAGLE-3 speculation", "speculative"),
    ("speculative decoding with a draft model", "speculative"),
    ("spec decode: ngram", "speculative"),
    ("no MTP", ""), ("MTP/spec status not given", ""), ("speculative decoding: off", ""),
    ("EAGLE3 speculative decoding, acceptance=0.75", "speculative"),
    ("MTP, num_draft=3, alpha=0.6", "speculative"),
    ("EAGLE speculation with temperature=0", "speculative"),
    ("speculative decoding without tree attention", "speculative"),
    ("n-gram speculation, no tree", "speculative"), ("MTP on, radix cache off", "speculative"),
    ("acceptance rate 0.7, 3 draft tokens", "speculative"), ("lookahead decoding", "speculative"),
    ("accepted 2.9 tokens per step", "speculative"), ("MTP=0", ""), ("MTP status not checked", ""),
    ("max throughput, attention DP, no MTP", ""), ("spec decode: off", ""),
    ("warm prefix cache (multi-turn)", "prefix cache"), ("APC on", "prefix cache"),
    ("80% of the prompt cached", "prefix cache"), ("KV cache reuse enabled", "prefix cache"),
    ("prompt caching on", "prefix cache"), ("prefix cache hits 0", ""), ("KV cache fp8", ""),
    ("beam search 4", "beam search"), ("beam width 1", ""),
    ("request rate 4 req/s Poisson", "a rate of their own"),
    ("specification of the card", ""), ("mean; prefix cache hit 90 %", "prefix cache"),
    ("prefix caching off", ""), ("closed loop; with MTP-3", "speculative")])
def test_what_a_note_tells(notes: str, reason: str) -> None:
    if reason:
        with pytest.raises(UnknownError, match=reason):
            check_notes(replace(ROW, notes=notes))
    else:
        check_notes(replace(ROW, notes=notes))


def test_what_ran_on_the_processor_is_not_of_the_device() -> None:
    h100, epyc = load_hardware("h100"), load_hardware("epyc-9654")
    for row in (replace(ROW, engine="llama.cpp CPU"), replace(ROW, notes="run on cpu")):
        with pytest.raises(UnknownError, match="on the processor"):
            check_processor(row, h100)
        check_processor(row, epyc)
    check_processor(ROW, h100)
    with pytest.raises(UnknownError, match="some of the processor's cores"):
        check_processor(replace(ROW, notes="threads=8"), epyc)
    check_processor(replace(ROW, notes="threads=96"), epyc)


def test_pools_and_rates_of_their_own_are_refused() -> None:
    with pytest.raises(UnknownError, match="different workers"):
        check_notes(replace(ROW, engine="SGLang (disaggregated)"))
    with pytest.raises(UnknownError, match="a rate of their own"):
        check_notes(replace(ROW, rate="10 req/s Poisson"))


@pytest.mark.parametrize(("text", "served"), [
    ("benchmark_serving.py", True), ("closed loop, 8 users", True), ("aiperf", True),
    ("observed", False), ("reserved", False), ("", False)])
def test_served(text: str, served: bool) -> None:
    assert says_served(replace(ROW, notes=text)) is served


def test_all_at_once() -> None:
    assert [all_at_once(replace(ROW, rate=r)) for r in ("burst", "inf (offline)", "offline", "")
            ] == [True, True, False, False]
