"""Hosts: which processor launches a device's kernels, and how fast it is."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import Deployment, Hardware, Workload, estimate, sweep
from simulator.efficiency.hosts import _table, host_of, host_speed
from simulator.errors import InputError
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import load_engine
from simulator.specs.stack import stack


def test_machines_of_known_devices() -> None:
    # DGX A100 and DGX H100: docs.nvidia.com; AWS g5; the device's own cores where it is one chip.
    found = {name: host_of(Hardware.load(name)) for name in (
        "a100-sxm4-80gb", "h100-sxm5-80gb", "a10g", "dgx-spark-gb10", "gb200-nvl72", "epyc-9654",
        "tpu-v5e")}
    assert found == {"a100-sxm4-80gb": "epyc-7742", "h100-sxm5-80gb": "xeon-8480c",
                     "a10g": "epyc-7r32", "dgx-spark-gb10": "cortex-x925", "gb200-nvl72": "grace",
                     "epyc-9654": None, "tpu-v5e": None}


def test_speed_is_clock_times_instructions_a_cycle() -> None:
    assert host_speed(Hardware.load("h100-sxm5-80gb")) == 1.0
    assert host_speed(Hardware.load("a100-sxm4-80gb")) == pytest.approx(3.4 * 1.05 / (3.8 * 1.40))
    assert host_speed(Hardware.load("tpu-v5e")) == 1.0


def test_every_host_is_a_known_processor_and_every_device_has_a_speed() -> None:
    table = _table()
    assert set(table["hosts"].values()) <= set(table["processors"])
    assert table["reference"] in table["processors"]
    for name in catalogue("hardware"):
        assert 0.3 < host_speed(Hardware.load(name)) < 3.0, name


@pytest.mark.parametrize("device", ["a100-sxm4-80gb", "rtx-4090-24gb", "tpu-v5e"])
def test_host_time_is_divided_by_the_speed(device: str) -> None:
    engine = load_engine("vllm").replace(host_time=1e-3, layer_time=2e-5, sequence_time=1e-6)
    d = Deployment.of("llama-3.2-1b", device).replace(engine=engine)
    speed = host_speed(d.hardware)
    assert d.host_times == (1e-3 / speed, 2e-5 / speed, 1e-6 / speed)
    step = estimate(d, Workload(4, 100, 10)).decode.detail
    assert step.host >= (1e-3 + 16 * 2e-5 + 4e-6) / speed * (1 - 1e-12)


def test_a_device_may_state_its_host() -> None:
    card = Hardware.load("rtx-4090-24gb")
    slow = card.replace(host="cortex-a76")
    assert host_of(slow) == "cortex-a76"
    assert host_speed(slow) == pytest.approx(2.4 * 0.82 / (3.8 * 1.40))
    assert host_speed(slow) < host_speed(card)
    with pytest.raises(InputError, match=r"unknown processor 'cortex-a67'.*cortex-a76"):
        host_speed(card.replace(host="cortex-a67"))


def test_a_loop_over_experts_costs_the_host_a_share_of_a_layer_for_each() -> None:
    d = Deployment.of("qwen2-57b-a14b", "a100-sxm4-80gb")
    eager = load_engine("transformers")
    looped, fused = (d.replace(engine=eager.replace(expert_share=s)) for s in (0.11, 0.0))
    assert fused.host_layers == d.model.layer_count == 28
    assert looped.host_layers == pytest.approx(28 * (1 + 0.11 * 64))
    assert looped.replace(model=Deployment.of("qwen2-7b", "a100").model).host_layers == 28


def test_devices_together_have_each_its_own_host() -> None:
    members = [Hardware.load(n) for n in ("a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-4090-24gb")]
    speeds = host_speed(stack(members))
    assert np.shape(speeds) == (3, 1, 1, 1)
    assert [float(s) for s in speeds.ravel()] == [host_speed(m) for m in members]


def test_ranges_of_devices_together_keep_their_hosts() -> None:
    # A device with ranges is timed at their ends too, each a device more of the same host.
    names = ["h100-sxm5-80gb", "mn-core-l1400", "rtx-4090-24gb"]
    together = sweep("llama-3.1-8b", names, batch=[1, 4], engines="vllm")
    for name in names:
        alone = sweep("llama-3.1-8b", name, batch=[1, 4], engines="vllm")
        mine = together[together.hardware == name]
        assert mine.tpot_s.tolist() == alone.tpot_s.tolist()
