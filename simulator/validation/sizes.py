"""Figures of memory beside printed ones: weights, the peak of the engine's processes, KV tokens."""

from __future__ import annotations

from simulator.deployment import Deployment, Parallelism
from simulator.memory import memory, policy

# Engines that run Hugging Face's generate, whose version few sources print: before 4.45 (September
# 2024) it kept the logits of all tokens of a prompt, in 16 bits and once more in FP32.
KEEPS_LOGITS = ("transformers", "transformers-cpu", "autoawq", "autoawq-gemv")
LOGIT_BYTES = 2.0 + 4.0


def size_of(d: Deployment, figure: str, batch: float, prompt: float, output: float) -> float:
    """Weights or peak [GiB], or tokens that the KV pool holds."""
    m = memory(d, batch, prompt, output)
    if figure == "weights_gib":
        return float(m.weights) / 2**30
    if figure == "peak_mem_gib":
        return peak_bytes(d, batch, prompt, output) / 2**30
    return float(m.pool.tokens)


def peak_bytes(d: Deployment, batch: float, prompt: float, output: float) -> float:
    """What the engine's process holds [bytes], neither the system's share nor what stays unused.

    Of one device where each has a process of its own; of all where one process spreads the layers
    over them. An engine that takes its KV pool at the start holds all of it.
    """
    devices = float(d.devices) if d.engine.splits == "layers" else 1.0
    whole = d.replace(parallelism=Parallelism()) if devices > 1.0 else d
    m, context = memory(whole, batch, prompt, output), float(policy(d)[1])
    if d.engine.memory_policy != "all" and devices == 1.0:
        return float(m.capacity - m.reserved) + context
    return float(m.weights + m.kv) + devices * (float(m.activations) + context)


def prompt_logits_gib(d: Deployment, batch: float, prompt: float) -> float:
    """Logits of all tokens of the prompts [GiB], where the engine may have kept them; else 0."""
    if d.engine.name not in KEEPS_LOGITS:
        return 0.0
    return LOGIT_BYTES * batch * prompt * d.model.head_rows / 2**30


__all__ = ["peak_bytes", "prompt_logits_gib", "size_of"]
