"""What the simulator counts for a model: FLOPs, bytes and memory of a prefill and a decode step.

Counts only, so they hold on any device; the operations bear the names that the executor times.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from simulator.allocation import kv_bytes_per_token
from simulator.deployment import Deployment
from simulator.errors import DoesNotFitError
from simulator.executor.cut import at_format, cut
from simulator.kv_cache import fixed_state_elements
from simulator.layers import Phase, Segment, pass_operations
from simulator.memory import activation_bytes, weight_bytes
from simulator.operations import Operation
from simulator.operations.ssm import STATE_BYTES
from simulator.parameters import mixer_tensors
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import GatedDelta, Mamba, Mamba2, Model, ShortConv
from simulator.units import format_memory

# What the executor times by kind, each other operation by its name.
_BY_KIND = ("attention", "norm", "elementwise")
# A device, since a deployment has one; counts don't depend on it.
_ANY = Hardware(name="any", title="any", memory_bandwidth=1.0, memory_capacity=1.0,
                peak_bf16=1.0)
# Interpreter, torch and what its allocator holds back.
RUNTIME_BYTES = 0.5 * 2.0**30


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of all executions of an operation in one pass or step."""

    flops: float
    bytes: float


def deployment_of(model: Model, dtype: str, hardware: Hardware | None = None,
                  engine: str = "ideal") -> Deployment:
    """The model with weights, activations and cache in one number format.

    Without hardware for counts alone.
    """
    return Deployment(at_format(model, dtype), hardware or _ANY, load_engine(engine),
                      activations=dtype, kv=dtype)


def timed_as(operation: Operation) -> str:
    """Name under which the executor times an operation."""
    if operation.name == "small_weights":
        return "norm"
    return operation.kind if operation.kind in _BY_KIND else operation.name


def work(d: Deployment, phase: Phase, batch: int, prompt: int, output: int = 1
         ) -> dict[str, Work]:
    """Work by operation: of one prefill, or of the mean of the output - 1 decode steps."""
    if phase == "prefill":
        segment = Segment(float(batch), float(prompt), float(prompt), phase)
    else:
        contexts = prompt + np.arange(1.0, output)
        segment = Segment(float(batch), 1.0, contexts, phase)
    found: dict[str, Work] = {}
    way = int(phase == "prefill")    # latent attention expands in a prefill and absorbs in a step
    for o in pass_operations(d, [segment], float(batch)):
        if o.alternative is not None and o.alternative[1] != way:
            continue
        flops, size = (float(np.mean(o.count * x)) for x in (o.flops, o.bytes))
        before = found.get(timed_as(o), Work(0.0, 0.0))
        found[timed_as(o)] = Work(before.flops + flops, before.bytes + size)
    moved = _read_in_scans(d)    # the simulator counts all small tensors of a layer with its norms
    if moved:
        for name, sign in (("norm", -1.0), ("scan", 1.0)):
            found[name] = Work(found[name].flops, found[name].bytes + sign * moved)
    return found


def _read_in_scans(d: Deployment) -> float:
    """Bytes of the small tensors of recurrent layers: decays, steps, convolutions."""
    return float(sum(
        g.count * elements * d.weight_format("norm").bytes
        for g in d.model.layers if isinstance(g.mixer, Mamba | Mamba2 | GatedDelta | ShortConv)
        for _, role, elements in mixer_tensors(g.mixer, d.model.hidden) if role == "norm"))


def total(parts: dict[str, Work]) -> Work:
    """The work of all operations."""
    return Work(sum(w.flops for w in parts.values()), sum(w.bytes for w in parts.values()))


def needed_bytes(model: Model, dtype: str, batch: int, prompt: int, output: int) -> float:
    """Memory of a run: weights, the whole KV cache, activations of the prefill, the runtime.

    The executor keeps the cache of window layers whole, recurrent states in fp32, and logits in
    fp32 beside.
    """
    d = deployment_of(model, dtype)
    cache = batch * (kv_bytes_per_token(d) * (prompt + output)
                     + STATE_BYTES * fixed_state_elements(model))
    return float(weight_bytes(d) + cache + activation_bytes(d, float(batch), float(prompt))
                 + RUNTIME_BYTES)


def layers_that_fit(model: Model, dtype: str, batch: int, prompt: int, output: int,
                    free: float) -> int:
    """Most layers, of the model's kinds, that run in `free` bytes; 0 if none."""
    def fits(layers: int) -> bool:
        return needed_bytes(cut(model, layers), dtype, batch, prompt, output) <= free

    return bisect_right(range(1, model.layer_count + 1), 0, key=lambda n: int(not fits(n)))


class TooLargeError(DoesNotFitError):
    """A run that needs more memory than is free: bytes, and the layers that would fit."""

    def __init__(self, needed: float, free: float, layers: int, of: str) -> None:
        self.needed, self.free, self.layers = needed, free, layers
        way = (f"--layers {layers} fits" if layers else
               "not even one layer does: use a smaller --scale, --batch or --input")
        super().__init__(f"{of} needs {format_memory(needed)} (weights, KV cache, activations), "
                         f"{format_memory(free)} are free; {way}")


def check_memory(model: Model, dtype: str, batch: int, prompt: int, output: int, free: float,
                 of: str) -> None:
    """TooLargeError where a run would not fit."""
    needed = needed_bytes(model, dtype, batch, prompt, output)
    if needed > free:
        raise TooLargeError(needed, free, layers_that_fit(model, dtype, batch, prompt, output,
                                                          free), of)


__all__ = ["TooLargeError", "Work", "check_memory", "deployment_of", "layers_that_fit",
           "needed_bytes", "total", "work"]
