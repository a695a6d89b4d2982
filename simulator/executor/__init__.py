"""A small real decoder in torch, timed on the machine at hand, to hold predictions against.

transformer  the decoder, of the layers of any model file: modules (products, norms, MLP),
             attention, latent_attention, recurrent, experts, and the cache that they keep
cut          a catalogue model with fewer layers or smaller widths, to fit a machine
timing       medians with spread of calls, on CUDA with events, on CPU with its threads pinned
measure      prefill and decode, whole and by operation, beside their FLOPs and bytes
calibrate    what the machine can do, part by part, as a hardware file
comparison   models that calibration never saw: predicted, run, compared

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
