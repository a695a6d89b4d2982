"""One run of `tokline measure`: a model at several batches and prompt lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch._dynamo.exc import TorchDynamoException

from simulator.errors import InputError
from simulator.executor.counts import TooLargeError, check_memory
from simulator.executor.cut import cut, cut_name
from simulator.executor.measure import Measured, Runner
from simulator.executor.measure_report import Session
from simulator.executor.timing import (
    Timing,
    environment,
    find_device,
    free_memory,
    set_threads,
)
from simulator.specs.model import Model

ROUNDS = 3
# Seconds after which a phase of a point is repeated no further.
BUDGET = 10.0


def joined(measured: Sequence[Measured]) -> list[Measured]:
    """The rounds of each phase and operation at each point as one measurement."""
    found: dict[tuple[object, ...], list[Measured]] = defaultdict(list)
    for m in measured:
        found[m.phase, m.operation, m.batch, m.input, m.output].append(m)
    return [replace(same[0], time=Timing.joined([m.time for m in same]))
            for same in found.values()]


def measure_model(
    model: Model, device: str, dtype: str, batches: Sequence[int], inputs: Sequence[int],
    output: int, layers: int | None = None, scale: float = 1.0, repeats: int = 5,
    threads: int | None = None, compiled: bool = False, graph: bool = False,
    hardware: str | None = None, progress: Callable[[str], None] = lambda text: None,
) -> Session:
    """Measure every batch with every input; the memory of all of them is checked before.

    The repeats are spread over rounds through all points, since a machine's speed drifts within
    seconds: repeats in a row would agree with each other and not with the next minute.
    """
    place = find_device(device)
    set_threads(threads)
    kept = cut(model, layers, scale)
    name = cut_name(model, kept, scale)
    points = [(b, i) for i in inputs for b in batches]
    free = free_memory(place)
    for batch, prompt in points:
        check_memory(kept, dtype, batch, prompt, output, free,
                     f"{name} in {dtype} at batch {batch:,}, input "
                     f"{prompt:,}, output {output:,}")
    progress("random weights")
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    measured: list[Measured] = []
    try:
        runner = Runner(kept, dtype, place, max(inputs) + output, compiled, graph)
        rounds = 1 if compiled else min(ROUNDS, repeats)    # a round would compile anew
        for turn in range(1, rounds + 1):
            for batch, prompt in points:
                progress(f"round {turn} of {rounds}: batch {batch}, input {prompt}")
                runs = repeats // rounds + int(turn <= repeats % rounds)
                measured += runner.measure(batch, prompt, output, runs, BUDGET / rounds)
    except (torch.OutOfMemoryError, MemoryError):
        raise InputError("the device ran out of memory; use fewer --layers or a smaller --batch, "
                         "--input or --scale") from None
    except TorchDynamoException as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"--compile: torch could not compile the model: {reason[:200]}") from None
    found = environment(place)
    return Session(
        model=name, hardware=hardware or str(found["device_name"]),
        spec=kept, parameters=runner.model.parameter_count, weight_bytes=runner.weight_bytes,
        dtype=dtype, mode=runner.mode, environment=found, measured=joined(measured),
        peak=float(torch.cuda.max_memory_allocated(place)) if place.type == "cuda" else None)


__all__ = ["TooLargeError", "joined", "measure_model"]
