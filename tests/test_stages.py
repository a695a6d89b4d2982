"""Pipeline stages: the fullest one, the bubble, and that a pipeline shortens no single request."""

from __future__ import annotations

import pytest

from simulator import Deployment, Parallelism, Workload, estimate
from simulator import stages as s
from simulator.parameters import group_tensors


def test_sizes_are_dealt_as_vllm_does() -> None:
    """61 layers on 8 stages: 7 each, the 5 left over to the stages before the last."""
    assert s.stage_sizes(61, 8) == [7, 7, 8, 8, 8, 8, 8, 7]
    assert s.stage_sizes(61, 2) == [31, 30]
    assert s.stage_sizes(32, 4) == [8, 8, 8, 8]


def test_fullest_stage_of_first_dense_layers() -> None:
    """DeepSeek-V3 on 8 stages: 8 MoE layers, no embedding, no head."""
    d = Deployment.of("deepseek-v3", "h200", parallelism=Parallelism(pp=8))
    assert s.fullest_stage(d) == ([0.0, 8.0], False, False)
    two = Deployment.of("deepseek-v3", "h200", parallelism=Parallelism(tp=8, pp=2))
    assert s.fullest_stage(two) == ([0.0, 30.0], False, True)
    one_layer = sum(t.elements * two.weight_format(t.role).bytes
                    for t in group_tensors(two.model, two.model.layers[1]))
    assert float(estimate(two).memory.weights) == pytest.approx(one_layer * 30 / 8, rel=0.05)


def test_alternating_layers_round_each_kind_up() -> None:
    """Jamba on 8 stages of 4 layers: some stage has an attention layer, 2 x 8 x 128 x 2 bytes."""
    d = Deployment.of("jamba-1.5-mini-52b", "h200", parallelism=Parallelism(pp=8))
    assert float(estimate(d).memory.kv_per_token) == 4096.0


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gemma-3-27b"])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_operations_add_up_to_the_phase(name: str, pp: int) -> None:
    e = estimate(Deployment.of(name, "h200", parallelism=Parallelism(pp=pp)), Workload(8, 512, 64))
    for phase in (e.prefill.detail, e.decode.detail):
        for part in ("flops", "bytes"):
            total = sum(float(getattr(t, part)) for t in phase.operations)
            assert total == pytest.approx(float(getattr(phase, part)), rel=1e-12)
        time = sum(float(t.expected) for t in phase.operations) + float(phase.host)
        assert time == pytest.approx(float(phase.expected), rel=1e-12)


def test_a_pipeline_shortens_no_single_request() -> None:
    one = estimate(Deployment.of("llama-3.1-70b", "h200"), Workload(1, 1024, 64))
    four = estimate(Deployment.of("llama-3.1-70b", "h200", parallelism=Parallelism(pp=4)),
                    Workload(1, 1024, 64))
    assert float(four.tpot.expected) >= float(one.tpot.expected)
    assert float(four.ttft.expected) >= float(one.ttft.expected)
    assert float(four.decode.detail.flops) < 0.3 * float(one.decode.detail.flops)


def test_a_pipeline_raises_throughput_of_many() -> None:
    """With 256 sequences four stages work on 64 each: a quarter of the cache at once."""
    one = estimate(Deployment.of("llama-3.1-8b", "h200"), Workload(256, 1024, 64))
    four = estimate(Deployment.of("llama-3.1-8b", "h200", parallelism=Parallelism(pp=4)),
                    Workload(256, 1024, 64))
    assert float(four.output_tokens_per_s.expected) > 1.5 * float(one.output_tokens_per_s.expected)
    assert float(four.ttft.expected) < float(one.ttft.expected)


def test_bubble() -> None:
    """GPipe: 4 stages and 12 micro-batches wait 3 of 15 slots; one stage never waits."""
    assert s.bubble(4.0, 12.0) == pytest.approx(0.2)
    assert s.bubble(1.0, 12.0) == 0.0
    assert s.fill_and_drain(1.0, 0.25) == 1.0
    assert s.fill_and_drain(12.0, 0.25) == pytest.approx(15 / 4)


def test_a_pipeline_waits_for_its_slowest_stage() -> None:
    """Llama-3.1-8B, 8 stages: the last has 4 layers and the head, 2.796 GB at 3.35 TB/s."""
    d = Deployment.of("llama-3.1-8b", "h100", "ideal", parallelism=Parallelism(pp=8))
    eight = estimate(d, Workload(8, 1024, 256))
    assert float(eight.tpot.ceiling) >= 8 * 2.796e9 / 3.35e12
    assert float(eight.decode.utilisation) <= 1.0
    one = estimate(d, Workload(1, 1024, 256))
    assert float(one.decode.detail.bytes) == pytest.approx(2.817e9, rel=0.01)


def test_experts_are_not_read_to_see_them_held() -> None:
    """DeepSeek-V3 on 8 stages, 8 sequences: the last stage streams the head, 5.98 GB, 8 times."""
    d = Deployment.of("deepseek-v3", "h200", "ideal", parallelism=Parallelism(pp=8))
    assert float(estimate(d, Workload(8, 1024, 256)).tpot.ceiling) >= 8 * 5.95e9 / 4.8e12


@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_experts_see_the_tokens_there_are(batch: int) -> None:
    """Mixtral, dp 8 and ep 8: 2 choices a token, however the replicas are filled."""
    d = Deployment.of("mixtral-8x7b", "h100", "ideal", parallelism=Parallelism(dp=8, ep=8))
    e = estimate(d, Workload(batch, 64, 2))
    experts = next(t for t in e.decode.detail.operations if t.operation.name == "experts")
    one_expert = 2 * 3 * 4096 * 14336 * 32
    assert float(experts.flops) >= batch * 2 / 8 * one_expert * (1 - 1e-12)
    assert float(experts.flops) <= batch * one_expert * (1 + 1e-12)
