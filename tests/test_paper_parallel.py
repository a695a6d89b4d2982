"""Published rows of systems with many devices, through the public API."""

from __future__ import annotations

import pytest

from simulator import Deployment, Engine, Hardware, Model, Parallelism, Workload, estimate
from simulator.specs.hardware import parse_inline
from simulator.specs.model import parse_model

# LIMINAL v1 (2507.14397), batch-1 table: Llama-3-405B in FP8 on xPU-HBM3 (4 TiB/s, 2.25 PFLOP/s).
# tp, cp, context, tokens/s a user. The paper's exposed synchronisation is 0.6 us a layer on 8 chips
# and 4.5 us on more; with the collectives that a layer has here (2, or 3 with context parallelism)
# that is 0.3 us and 1.5 us each.
LIMINAL = [(8, 1, 0.3, 4096, 86), (8, 1, 0.3, 131072, 80), (8, 4, 1.5, 4096, 290),
           (8, 4, 1.5, 131072, 271), (8, 16, 1.5, 4096, 776), (8, 16, 1.5, 131072, 743)]


def xpu_hbm3(microseconds: float) -> Hardware:
    """The study's chip with a synchronisation time that doesn't depend on the message."""
    return parse_inline({
        "name": "xpu-hbm3", "memory_bandwidth": "4 TiB/s", "memory_capacity": "96 GB",
        "peak_fp8": "2.25 PFLOP/s", "link_bandwidth": "100 TB/s", "link_domain": 128,
        "collectives": [
            {"operation": operation, "ranks": ranks, "sizes": ["1 B", "1 GB"],
             "times": [f"{microseconds} us"] * 2}
            for operation in ("all_reduce", "all_gather", "all_to_all")
            for ranks in (2, 4, 8, 16, 32, 64, 128)],
    })


@pytest.mark.parametrize(("tp", "cp", "sync", "context", "tokens_per_s"), LIMINAL)
def test_liminal(tp: int, cp: int, sync: float, context: int, tokens_per_s: float) -> None:
    d = Deployment(Model.load("llama-3.1-405b"), xpu_hbm3(sync), Engine.load("ideal"), "fp8", "fp8",
                   "fp8", {"embedding": "fp8", "head": "fp8"}, Parallelism(tp=tp, cp=cp))
    step = estimate(d, Workload(1, context - 1, 2)).tpot.expected
    assert 1 / float(step) == pytest.approx(tokens_per_s, rel=0.01)


def palm_540b() -> Model:
    """PaLM 540B: 118 layers, D 18432, F 4D gated, 48 heads of 256, one KV head, parallel block."""
    return parse_model({
        "name": "palm-540b", "hidden": 18432, "vocabulary": 256000, "positions": 65536,
        "tied_embeddings": True, "norm": "layer-no-bias",
        "layers": [{"count": 118, "norms": 1, "parallel": True,
                    "mixer": {"kind": "attention", "heads": 48, "kv_heads": 1, "head_dim": 256},
                    "ffn": {"kind": "dense", "width": 73728}}]}, "palm")


def tpu_v4() -> Hardware:
    """TPU v4 as the paper gives it."""
    return parse_inline({"name": "tpu", "memory_bandwidth": "1.2 TB/s", "memory_capacity": "32 GiB",
                         "peak_bf16": "275 TFLOP/s", "link_bandwidth": "270 GB/s",
                         "link_domain": 4096})


# Pope et al. 2022 (2211.05102), Table 2, 64 TPU v4: batch, tokens a sequence, time [s], MFU.
POPE_TABLE_2 = [(1, 2048, 0.29, 0.43), (64, 64, 1.82, 0.14), (512, 2048, 85.2, 0.76),
                (512, 64, 6.0, 0.33)]


@pytest.mark.parametrize(("batch", "tokens", "seconds", "mfu"), POPE_TABLE_2)
def test_pope_mfu(batch: int, tokens: int, seconds: float, mfu: float) -> None:
    """MFU counts 2 FLOPs a parameter and token: matrices of our pass over the paper's time."""
    from simulator.flops import forward_flops

    matrices = float(forward_flops(palm_540b(), 1, 1, 1, 1)["gemm"])
    found = matrices * batch * tokens / (64 * 275e12 * seconds)
    assert found == pytest.approx(mfu, rel=0.03)


# Pope et al. 2022, Table 1: KV heads, head size, batch, ranks that share the cache, max context
# with 30 % of the memory of 64 chips for the cache. Multi-head counts the 64 padded heads.
POPE_TABLE_1 = [(64, 128, 128, 64, 1320), (64, 128, 512, 64, 330), (1, 256, 128, 1, 660),
                (1, 256, 512, 1, 165), (1, 256, 128, 64, 43000), (1, 256, 512, 64, 10700)]


@pytest.mark.parametrize(("kv_heads", "head_dim", "batch", "share", "context"), POPE_TABLE_1)
def test_pope_max_context(kv_heads: int, head_dim: int, batch: int, share: int,
                          context: int) -> None:
    from simulator.kv_cache import kv_elements_per_token

    model = palm_540b()
    mixer = model.layers[0].mixer.replace(heads=64, kv_heads=kv_heads, head_dim=head_dim)
    model = model.replace(layers=(model.layers[0].replace(mixer=mixer),))
    room = 0.3 * float(tpu_v4().memory_capacity) * share
    assert room / (kv_elements_per_token(model) * 2 * batch) == pytest.approx(context, rel=0.03)
