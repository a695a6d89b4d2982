"""Memory tiers by working set: what a cache holds isn't streamed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.caches import (
    largest_resident_share,
    missed_bytes,
    resident_share,
    tiered_time,
    working_set,
)
from simulator.deployment import Deployment
from simulator.layers import Segment, pass_operations
from simulator.specs.hardware_parts import Cache
from simulator.specs.sourced import UNSOURCED

MIB = 2.0**20
CACHES = (Cache(name="L2", capacity=1 * MIB, bandwidth=100e9, provenance=UNSOURCED),
          Cache(name="L3", capacity=16 * MIB, bandwidth=50e9, provenance=UNSOURCED))
SIZES = st.floats(1.0, 1e12)


def test_share_of_a_cyclic_sweep() -> None:
    assert resident_share(8 * MIB, 16 * MIB) == 1.0
    assert resident_share(24 * MIB, 16 * MIB) == pytest.approx(0.5)
    assert resident_share(32 * MIB, 16 * MIB) == 0.0


def test_ceiling_keeps_what_a_cache_can_hold() -> None:
    assert largest_resident_share(64 * MIB, 16 * MIB) == 0.25


def test_tiers_by_hand() -> None:
    # 64 MiB once: 1/64 from L2, 15/64 more from L3, 48/64 from memory at 10 GB/s.
    by_hand = MIB / 100e9 + 15 * MIB / 50e9 + 48 * MIB / 10e9
    assert tiered_time(64 * MIB, 64 * MIB, CACHES, 10e9) == pytest.approx(by_hand)
    # What fits into L2 is served by it alone.
    assert tiered_time(MIB / 2, MIB / 2, CACHES, 10e9) == pytest.approx(MIB / 2 / 100e9)


def test_without_caches_all_is_streamed() -> None:
    assert tiered_time(1e9, 1e9, (), 10e9) == pytest.approx(0.1)
    assert missed_bytes(1e9, 1e9, ()) == 1e9


@given(SIZES, SIZES)
def test_the_ceiling_misses_no_more_than_the_expectation(Q: float, X: float) -> None:
    """An optimal cache serves at least what a cyclic sweep hits."""
    assert largest_resident_share(X, 16 * MIB) >= resident_share(X, 16 * MIB)
    assert tiered_time(Q, X, CACHES, 10e9) <= Q / 10e9 * (1 + 1e-12)


@given(SIZES, SIZES)
def test_larger_working_sets_are_no_faster(a: float, b: float) -> None:
    small, large = sorted((a, b))
    assert tiered_time(1e6, small, CACHES, 10e9) <= tiered_time(1e6, large, CACHES, 10e9) * (
        1 + 1e-12)
    assert missed_bytes(1e6, small, CACHES) <= missed_bytes(1e6, large, CACHES)


@given(st.lists(SIZES, min_size=2, max_size=9))
def test_vector_is_scalar(sizes: list[float]) -> None:
    X = np.array(sizes)
    for function in (lambda x: tiered_time(3e6, x, CACHES, 10e9),
                     lambda x: missed_bytes(3e6, x, CACHES),
                     lambda x: resident_share(x, 16 * MIB),
                     lambda x: largest_resident_share(x, 16 * MIB)):
        assert [float(v) for v in function(X)] == [float(function(x)) for x in sizes]


def test_working_set_holds_all_weights_and_the_cache() -> None:
    d = Deployment.of("llama-2-7b", "a100-sxm4-80gb", activations="bf16")
    step = pass_operations(d, [Segment(1.0, 1.0, 1024.0, "decode")], 1.0)
    # 6.74 G parameters less the input embedding, of which a step reads one row; KV 0.5 MiB a token.
    weights = 2.0 * (6_738_415_616 - 32_000 * 4096)
    assert working_set(step) == pytest.approx(weights + 1024 * 0.5 * MIB, rel=2e-3)


def test_working_set_holds_experts_that_are_not_picked() -> None:
    d = Deployment.of("mixtral-8x7b", "a100-sxm4-80gb", activations="bf16")
    step = pass_operations(d, [Segment(1.0, 1.0, 16.0, "decode")], 1.0)
    assert working_set(step) == pytest.approx(2.0 * 46.6e9, rel=0.01)
