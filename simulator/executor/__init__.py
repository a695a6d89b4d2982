"""A small real decoder in torch, timed on the machine at hand, to hold predictions against.

transformer  the decoder: RMS norm, rope, grouped-query attention, gated MLP or experts, KV cache
shapes       a catalogue model as a shape the decoder runs, and that shape as a catalogue model
timing       medians with spread of calls, on CUDA with events, on CPU with its threads pinned
measure      prefill and decode, whole and by operation, beside their FLOPs and bytes

Only these modules import torch, which comes with the extra `tokline[torch]`.
"""

from __future__ import annotations

from simulator.errors import InputError


def need_torch() -> None:
    """InputError in one line where torch is not installed."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise InputError("this command runs a model with torch, which is not installed: "
                         "pip install 'tokline[torch]'")
