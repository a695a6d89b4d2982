"""What no kernel accounts for: the host's time a layer and a step, and that of visiting experts.

Tiny models are run whose arithmetic and traffic are next to nothing. What they take beyond the
prediction without overheads, by the number of layers, is the overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from simulator.executor.machine import Kernel, Machine, machine_hardware
from simulator.executor.microbenchmarks import Bench
from simulator.executor.shape import Shape
from simulator.executor.timing import time_calls
from simulator.executor.transformer import Experts, Transformer

TINY = Shape(hidden=128, layers=2, query_heads=2, kv_heads=1, head_dim=64, ffn=128, vocabulary=256)
MANY, CONTEXT = 12, 64
REPEATS = 60
EXPERTS = 16


def _step_time(b: Bench, layers: int) -> float:
    """Seconds of a decode step of the tiny model, with its greedy choice."""
    model = Transformer(replace(TINY, layers=layers), b.dtype, b.device, 2 * CONTEXT)
    cache = model.cache(1, 2 * CONTEXT)
    token = torch.zeros(1, 1, dtype=torch.long, device=b.device)

    def full() -> None:
        cache.length = CONTEXT

    return time_calls(lambda: model.decode(token, cache).argmax(-1, keepdim=True), b.device,
                      REPEATS, 5, 1.0, full).median


def _predicted(machine: Machine, name: str, layers: int) -> float:
    """The same step as the machine's kernels alone predict it."""
    from simulator.deployment import Deployment
    from simulator.efficiency import Efficiency
    from simulator.executor.shapes import model_of
    from simulator.specs.engine import load_engine
    from simulator.step import decode

    model = model_of(replace(TINY, layers=layers), "tiny", name)
    hardware, engine = machine_hardware(machine), load_engine("executor")
    d = Deployment(model, hardware, engine, activations=name)
    context = float(CONTEXT + 1)
    return float(decode(d, hardware, Efficiency(hardware, engine), 1.0, context, context).expected)


def _experts(b: Bench, name: str) -> Kernel:
    """Floors of routing and of each visited expert: one token that picks one expert, or all."""
    one, all_ = (_expert_layer_time(b, picked) for picked in (1, EXPERTS))
    each = max((all_ - one) / (EXPERTS - 1), 0.0)
    return Kernel("moe", name, (), (), floor=max(one - each, 0.0), each=each)


def _expert_layer_time(b: Bench, picked: int) -> float:
    """Seconds of a tiny layer of experts for one token that picks so many of them."""
    shape = replace(TINY, experts=EXPERTS, active_experts=picked, expert_ffn=64, ffn=0)
    layer = Experts(shape).to(b.device, b.dtype).requires_grad_(False)
    for p in layer.parameters():
        p.normal_(std=0.05)
    x = b.random(1, 1, TINY.hidden)
    return time_calls(partial(layer, x), b.device, REPEATS, 5, 1.0).median


def with_overheads(machine: Machine, benches: Mapping[str, Bench],
                   progress: Callable[[str], None]) -> Machine:
    """The machine with what its kernels alone leave out, as the mean over its formats."""
    progress("overheads of a layer, a step and an expert")
    layer, step, experts = [], [], []
    for name, b in benches.items():
        rest = [_step_time(b, n) - _predicted(machine, name, n) for n in (TINY.layers, MANY)]
        layer.append((rest[1] - rest[0]) / (MANY - TINY.layers))
        step.append(rest[0] - TINY.layers * layer[-1])
        experts.append(_experts(b, name))
    layers, steps = sum(layer) / len(layer), sum(step) / len(step)
    notes = tuple(f"Tiny models took {-rest * 1e6:.3g} us a {what} less than their kernels' "
                  "floors: no overhead beside them"
                  for what, rest in (("layer", layers), ("step", steps)) if rest < 0.0)
    return replace(machine, layer_overhead=max(layers, 0.0), step_overhead=max(steps, 0.0),
                   kernels=(*machine.kernels, *experts), notes=(*machine.notes, *notes))
