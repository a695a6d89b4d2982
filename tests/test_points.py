"""What was measured on a device, and the words an estimate makes of it."""

from __future__ import annotations

from simulator import Deployment, estimate
from simulator.efficiency.points import points_of
from simulator.output import measured


def test_a_device_with_rows() -> None:
    found = points_of("h100-sxm5-80gb")
    assert found is not None
    assert found.rows >= found.held_back > 0
    assert found.median is not None
    assert 0 < found.median < 1
    assert "llama-3.1-70b" in found.models


def test_a_device_without() -> None:
    assert points_of("mn-core-l1400") is None


def test_the_words() -> None:
    known = measured(estimate(Deployment.of("mamba-2.8b", "h100-sxm5-80gb")))
    assert "measured points" in known
    assert known.endswith("not among them")
    assert "not among" not in measured(estimate(Deployment.of("llama-3.1-70b", "h100")))
    unknown = measured(estimate(Deployment.of("llama-2-7b", "rtx-5080-16gb")))
    assert unknown.startswith("no figure measured on")
    assert "its architecture" in unknown
    assert "file's word" in measured(estimate(Deployment.of("llama-2-7b", "mn-core-l1400")))
