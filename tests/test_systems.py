"""Nodes, links and refusals; the default split; auto-parallelism against every split by hand."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from simulator import Deployment, Hardware, InputError, Parallelism, Workload, estimate
from simulator.choosing import GOALS, Choice, alternatives_lines, alternatives_list, choose, splits
from simulator.cli import run
from simulator.systems import check_links, connected, default_parallelism, node_sizes

LLAMA = "llama-3.1-70b"


def answer(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Any:
    assert run(["estimate", *args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(["estimate", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# nodes

def test_nodes_multiply(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, LLAMA, "8xh100-sxm", "--nodes", "2")
    assert (found["devices"], found["nodes"]) == (16, 2)
    assert found["parallelism"] == {"tp": 8, "pp": 2, "ep": 1, "cp": 1, "dp": 1}
    one = answer(capsys, LLAMA, "8xh100-sxm", "--nodes", "1")
    assert one == answer(capsys, LLAMA, "8xh100-sxm")
    assert (one["devices"], one["nodes"], one["parallelism"]["tp"]) == (8, 1, 8)


def test_the_slower_link_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """The same eight devices in one node, and in two of four: a quarter crosses at 50 GB/s each.

    537 MB in bf16: 1.75 x 537 MB / (0.7 x 450 GB/s) = 2.9 ms against 2.8 ms inside + 2.7 ms across.
    """
    args = (LLAMA, "--tp", "8", "--batch", "32")
    one = answer(capsys, args[0], "8xh100", *args[1:])
    two = answer(capsys, args[0], "4xh100", "--nodes", "2", *args[1:])


    def share(r: Any) -> float:
        return float(r["prefill"]["shares"]["network"] * r["prefill"]["time_s"]["expected"])

    assert (one["devices"], two["devices"]) == (8, 8)
    assert 1.7 < share(two) / share(one) < 2.1
    assert one["memory"] == two["memory"]


@pytest.mark.parametrize(("args", "words"), [
    (("16xh100",), ("joins 8", "8xh100-sxm5-80gb --nodes 2")),
    (("h100", "--tp", "8", "--pp", "2"), ("tp 8 x pp 2", "--nodes")),
    (("16xh100", "--nodes", "2"), ("joins 8", "--nodes 4")),
    (("8xh100", "--nodes", "2", "--tp", "8"), ("16 devices", "make 8")),
    (("h100", "--nodes", "3", "--tp", "8"), ("nodes: 3 do not divide 8",)),
    (("8xh100", "--nodes", "0"), ("--nodes", "between 1")),
    (("8xh100", "--nodes", "two"), ("--nodes",)),
    (("2xapple-m1-max",), ("need a link", "link_bandwidth")),
    (("4xdgx-spark-gb10",), ("joins 2", "no scale-out link", "--dp")),
    (("2xdgx-spark-gb10", "--nodes", "2"), ("scale-out link",)),
    (("4xh100-pcie", "--bridge"), ("joins 2 devices, not 4", "PCIe")),
    (("2xh100", "--bridge"), ("bridge_bandwidth",)),
])
def test_degrees_that_links_do_not_allow(capsys: pytest.CaptureFixture[str], args: Any,
                                         words: Any) -> None:
    found = refusal(capsys, LLAMA, *args)
    assert all(w in found for w in words)


def test_replicas_need_no_link(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("apple-m4-max", "h100"):
        found = answer(capsys, "llama-3.1-8b", name, "--dp", "16", "--batch", "16")
        assert found["devices"] == 16
        assert found["decode"]["shares"]["network"] == 0.0


def test_shared_experts_over_replicas_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    degrees = ("--dp", "16", "--ep", "16")
    assert "joins 8" in refusal(capsys, "deepseek-v3", "16xh200", *degrees)
    found = answer(capsys, "deepseek-v3", "8xh200", "--nodes", "2", *degrees)
    assert found["devices"] == 16
    assert connected(Parallelism(dp=16)) == 1
    assert connected(Parallelism(dp=16, ep=8)) == 16


def test_a_rack_is_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, LLAMA, "16xgb200")["parallelism"]["tp"] == 16


def test_default_split_and_sizes() -> None:
    assert default_parallelism(8, 2) == Parallelism(tp=8, pp=2)
    assert node_sizes(Hardware.load("h100")) == [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4),
                                                 (64, 8)]
    assert node_sizes(Hardware.load("apple-m1")) == [(1, 1)]
    assert node_sizes(Hardware.load("gb200"))[-1] == (64, 1)


def test_a_pipeline_inside_a_replica_stays_inside() -> None:
    """dp doesn't push the hand-over of a two-stage replica onto the scale-out link."""
    w = Workload(8, 512, 64)
    one = estimate(Deployment.of("llama-3.1-8b", "h100", parallelism=Parallelism(pp=2)), w)
    many = estimate(Deployment.of("llama-3.1-8b", "h100", parallelism=Parallelism(pp=2, dp=8)),
                    Workload(64, 512, 64))
    assert float(many.tpot.expected) == float(one.tpot.expected)


# choosing

def chosen(model: str, hardware: str, goal: str, devices: int | None = None,
           w: Workload | None = None, nodes: int = 1) -> Choice:
    return choose(Deployment.of(model, hardware), w or Workload(), goal, devices, nodes)


def test_every_split_is_listed() -> None:
    model = Deployment.of("mixtral-8x7b", "h100").model
    found = list(splits(model, 8))
    assert len(found) == len(set(found))
    assert all(p.devices == 8 and (p.tp * p.dp) % p.ep == 0 for p in found)
    assert Parallelism(tp=2, pp=2, ep=4, dp=2) in found
    choice = chosen("mixtral-8x7b", "h100", "latency", 8)
    assert len(choice.alternatives) + 1 == len(found)
    assert {o.parallelism for o in choice.alternatives} | {choice.deployment.parallelism} == set(
        found)


@pytest.mark.parametrize("model", [LLAMA, "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("goal", GOALS)
def test_the_chosen_one_is_the_best(model: str, goal: str) -> None:
    w = Workload(16, 1024, 128)
    choice = chosen(model, "h200", goal, 8, w)

    def value(p: Parallelism) -> float | None:
        try:
            d = Deployment.of(model, "h200", parallelism=p)
            check_links(d)
        except InputError:
            return None
        e = estimate(d, w)
        if not e.memory.fits:
            return None
        if goal == "throughput":
            e = estimate(d, Workload(max(16.0, min(float(e.memory.max_batch), 4096.0)), 1024, 128))
            return float(e.request_output_tokens_per_s.expected)
        return -float(e.e2e.expected) * (1 if goal == "latency" else e.deployment.devices)

    by_hand = {p: value(p) for p in splits(choice.deployment.model, 8)}
    best = max(v for v in by_hand.values() if v is not None)
    assert by_hand[choice.deployment.parallelism] == best
    for o in choice.alternatives:
        assert o.reason
        assert o.fits == (by_hand[o.parallelism] is not None)


def test_the_fewest_devices_that_fit() -> None:
    assert chosen("llama-3.1-8b", "h100", "latency").deployment.devices == 1
    assert chosen(LLAMA, "h100", "latency").deployment.devices == 2
    big = chosen("llama-3.1-405b", "h100", "latency")
    assert (big.deployment.devices, big.deployment.nodes) == (16, 2)
    assert {o.devices for o in big.alternatives} == {1, 2, 4, 8, 16}
    assert all("does not fit" in o.reason or ":" in o.reason for o in big.alternatives
               if o.devices < 16)


def test_latency_and_throughput_differ() -> None:
    """One user: all devices on each token. Many: fewer collectives."""
    fast, full = (chosen(LLAMA, "h100", g, 8).deployment.parallelism
                  for g in ("latency", "throughput"))
    assert fast.tp == 8
    assert full.tp < 8


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "llama-3.1-405b", "2xl40s", "--optimise", "latency", code=1)
    assert found["memory"]["fits"] is False
    assert all(not a["fits"] and "does not fit" in a["reason"] for a in found["alternatives"])
    assert chosen("llama-3.1-405b", "apple-m1", "cost").deployment.devices == 1


def test_alternatives_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "mixtral-8x7b", "8xh100", "--optimise", "latency", "--batch", "8")
    keys = {"parallelism", "devices", "nodes", "fits", "ttft_s", "tpot_s", "output_tokens_per_s",
            "max_batch", "reason"}
    assert all(set(a) == keys for a in found["alternatives"])
    p = found["parallelism"]
    assert p["tp"] * p["pp"] * p["dp"] == 8
    plain = answer(capsys, "mixtral-8x7b", "h100", "--batch", "8",
                   *(x for k, v in p.items() for x in (f"--{k}", str(v))))
    assert {k: v for k, v in found.items() if k not in ("alternatives", "optimised_for")} == plain
    assert "alternatives" not in plain
    assert run(["estimate", "mixtral-8x7b", "8xh100", "--optimise", "latency"]) == 0
    out = capsys.readouterr().out
    assert "chosen: end to end" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_two_nodes_are_chosen_from(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "llama-3.1-405b", "8xh100", "--nodes", "2", "--optimise", "throughput")
    assert (found["devices"], found["nodes"]) == (16, 2)


@pytest.mark.parametrize(("args", "words"), [
    (("8xh100", "--optimise", "speed"), "latency, throughput, cost"),
    (("8xh100", "--optimise", "cost", "--tp", "2"), "leave out --tp"),
    (("h100", "--optimise", "cost", "--nodes", "2"), "8xh100"),
])
def test_bad_questions(capsys: pytest.CaptureFixture[str], args: Any, words: str) -> None:
    assert words in refusal(capsys, LLAMA, *args)


@pytest.mark.parametrize("model", [LLAMA, "deepseek-v3"])
def test_eight_devices_take_less_than_a_second(model: str) -> None:
    chosen(model, "h200", "latency", 1)
    start = time.process_time()
    choice = chosen(model, "h200", "throughput", 8)
    assert time.process_time() - start < 1.0
    assert len(alternatives_lines(choice)) <= 13
    assert len(alternatives_list(choice)) == len(choice.alternatives)
