"""What no kernel accounts for: the host's time a layer and a step, and that of visiting experts.

Tiny models are run whose arithmetic and traffic are next to nothing. What they take beyond the
prediction without overheads, by the number of layers, is the overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from simulator.executor.comparison_shapes import dense
from simulator.executor.cut import at_format, cut
from simulator.executor.experts import Experts
from simulator.executor.machine import Kernel, Machine, machine_hardware
from simulator.executor.microbenchmarks import Bench
from simulator.executor.timing import time_calls
from simulator.executor.transformer import Transformer
from simulator.specs.model import Moe

TINY = dense("tiny", 128, 2, 2, 1, 64, 128, 256)
MANY, CONTEXT = 12, 64
REPEATS = 60
EXPERTS = 16


def _step_time(b: Bench, layers: int) -> float:
    """Seconds of a decode step of the tiny model, with its greedy choice."""
    model = Transformer(cut(TINY, layers), b.dtype, b.device, 2 * CONTEXT)
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
    from simulator.specs.engine import load_engine
    from simulator.step import decode

    model = at_format(cut(TINY, layers), name)
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
    spec = Moe(experts=EXPERTS, top_k=picked, width=64)
    layer = Experts(spec, TINY.hidden).to(b.device, b.dtype).requires_grad_(False)
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
        rest = [_step_time(b, n) - _predicted(machine, name, n) for n in (TINY.layer_count, MANY)]
        layer.append((rest[1] - rest[0]) / (MANY - TINY.layer_count))
        step.append(rest[0] - TINY.layer_count * layer[-1])
        experts.append(_experts(b, name))
    layers, steps = sum(layer) / len(layer), sum(step) / len(step)
    notes = tuple(f"Tiny models took {-rest * 1e6:.3g} us a {what} less than their kernels' "
                  "floors: no overhead beside them"
                  for what, rest in (("layer", layers), ("step", steps)) if rest < 0.0)
    return replace(machine, layer_overhead=max(layers, 0.0), step_overhead=max(steps, 0.0),
                   kernels=(*machine.kernels, *experts), notes=(*machine.notes, *notes))
