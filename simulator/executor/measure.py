"""Prefill and decode of a model, timed whole and operation by operation.

Operations are timed inside the running model, so that what lies in a cache is what the model itself
leaves there: a step uses each weight once, and between two uses of one the whole model passes by.
A model larger than the last-level cache therefore streams from memory, a smaller one doesn't.
Prompts are random, and the KV cache that decode starts from is filled with random values.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from simulator.errors import InputError, nearest
from simulator.executor.cache import Cache
from simulator.executor.counts import Work, check_memory, deployment_of, total, work
from simulator.executor.experts import Experts
from simulator.executor.modules import Norm, Timed
from simulator.executor.timing import (
    FEWEST,
    Stopwatch,
    Timing,
    find_device,
    free_memory,
    settle,
    synchronise,
    time_calls,
)
from simulator.executor.transformer import Transformer
from simulator.layers import Phase
from simulator.specs.model import Model, Moe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# What runs between the operations that have a module of their own.
REST = "elementwise"


def find_dtype(name: str) -> torch.dtype:
    """The torch type of fp32, bf16 or fp16."""
    key = name.strip().lower()
    if key not in DTYPES:
        raise InputError(f"--dtype: '{name}' is none that the executor runs{nearest(key, DTYPES)}")
    return DTYPES[key]


@dataclass(frozen=True)
class Measured:
    """One operation of a phase, or `pass` for the whole, in one pass or one mean decode step.

    count        executions in the pass
    time         of all executions, in seconds
    flops, bytes analytical counts of all executions
    tokens       new tokens of the pass
    """

    phase: Phase
    operation: str
    count: int
    batch: int
    input: int
    output: int
    time: Timing
    flops: float
    bytes: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, of all sequences."""
        return self.tokens / self.time.median

    @property
    def flops_per_s(self) -> float:
        """Achieved FLOP/s."""
        return self.flops / self.time.median

    @property
    def bytes_per_s(self) -> float:
        """Achieved bytes/s: of those that must move, so more than the memory's where a cache helps.
        """
        return self.bytes / self.time.median


@dataclass
class OperationClock:
    """Hooks on the modules of a model that attribute each stretch of time to the innermost one."""

    model: Transformer
    device: torch.device
    owners: list[str] = field(default_factory=list)
    stack: list[str] = field(default_factory=lambda: [REST])
    watch: Stopwatch = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.watch = Stopwatch(self.device)
        self.handles = [h for name, module in self.model.named_modules()
                        if (label := _label(name, module)) is not None
                        for h in (module.register_forward_pre_hook(self._enter(label)),
                                  module.register_forward_hook(self._leave))]

    def _enter(self, label: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._mark()
            self.stack.append(label)
            self.counts[label] += 1
        return hook

    def _leave(self, *_: Any) -> None:
        self._mark()
        self.stack.pop()

    def _mark(self) -> None:
        self.watch.mark()
        self.owners.append(self.stack[-1])

    def run(self, call: Callable[[], object]) -> tuple[dict[str, float], Counter[str]]:
        """Seconds and executions by operation of one call."""
        self.watch, self.counts, self.owners = Stopwatch(self.device), Counter(), []
        self.watch.mark()
        call()
        self._mark()
        found: dict[str, float] = defaultdict(float)
        for owner, seconds in zip(self.owners, self.watch.seconds(), strict=True):
            found[owner] += seconds
        self.counts[REST] = 1
        return dict(found), self.counts

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()


def _label(name: str, module: nn.Module) -> str | None:
    if isinstance(module, Norm):
        return "norm"
    if isinstance(module, Experts):
        return "experts"
    return name.rsplit(".", 1)[-1] if isinstance(module, Timed | nn.Embedding) else None


class Runner:
    """A model on a device, to be timed at several batches and lengths.

    tokens    longest context it will see
    compiled  torch.compile for prefill and for the decode step of fixed shapes
    graph     a CUDA graph of that decode step
    """

    def __init__(self, spec: Model, dtype: str, device: torch.device | str, tokens: int,
                 compiled: bool = False, graph: bool = False, seed: int = 0) -> None:
        self.device = find_device(device) if isinstance(device, str) else device
        if graph and self.device.type != "cuda":
            raise InputError("--cuda-graph: needs --device cuda")
        self.spec, self.dtype, self.compiled, self.graph = spec, dtype, compiled, graph
        self.model = Transformer(spec, find_dtype(dtype), self.device, tokens, seed)
        routed = any(isinstance(g.ffn, Moe) for g in spec.layers)
        if routed and (compiled or graph) and not self._experts_at_once():
            raise InputError("--compile, --cuda-graph: experts need bf16 on CUDA and a torch with "
                             "grouped_mm (2.10 and on)")
        self.deployment = deployment_of(spec, dtype)
        settle(self.device, torch.get_num_threads())
        self.generator = torch.Generator(device=self.device).manual_seed(seed + 1)

    def _experts_at_once(self) -> bool:
        sample = torch.empty(1, dtype=self.model.dtype, device=self.device)
        return all(m.one_kernel(sample) for m in self.model.modules() if isinstance(m, Experts))

    @property
    def mode(self) -> str:
        """eager, compile, cuda-graph, or both of these."""
        return "+".join(word for on, word in (
            (self.compiled, "compile"), (self.graph, "cuda-graph")) if on) or "eager"

    def tokens(self, batch: int, length: int) -> Tensor:
        """Random tokens (batch, length)."""
        return torch.randint(0, self.spec.vocabulary, (batch, length), device=self.device,
                             generator=self.generator)

    def cache(self, batch: int, filled: int, room: int) -> Cache:
        """A cache with room for `room` tokens, `filled` of them random."""
        cache = self.model.cache(batch, room)
        for tensor in cache.tensors:
            tensor.normal_(generator=self.generator)
        cache.length = filled
        return cache

    @torch.inference_mode()
    def prefill(self, batch: int, prompt: int, repeats: int = 5, budget: float = 10.0) -> Timing:
        """One pass over `batch` prompts with the first token picked."""
        cache, tokens = self.model.cache(batch, prompt), self.tokens(batch, prompt)
        run = self._compiled(self._first_token)
        return time_calls(lambda: run(tokens, cache), self.device, repeats, 2 if self.compiled
                          else 1, budget, cache.reset)

    def _first_token(self, tokens: Tensor, cache: Cache) -> Tensor:
        token: Tensor = self.model.sampling(self.model.prefill(tokens, cache))
        return token

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.compiled:
            return function
        torch.compiler.reset()
        compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
        return compiled

    @torch.inference_mode()
    def decode(self, batch: int, prompt: int, output: int, repeats: int = 5,
               budget: float = 10.0) -> Timing:
        """Mean of the output - 1 greedy steps whose context grows from `prompt` + 1 tokens."""
        steps = output - 1
        if steps < 1:
            raise InputError("output: decode needs at least 2 tokens, the first is of the prefill")
        cache = self.cache(batch, prompt, prompt + output)
        step = self._static_step(cache, batch) if self.compiled or self.graph else (
            self._eager_step(cache, batch))
        step.restart(prompt)
        for _ in range(min(steps, 3)):
            step.run()
        seconds: list[float] = []
        synchronise(self.device)
        begin = time.perf_counter()
        while len(seconds) < repeats and not (len(seconds) >= FEWEST
                                              and time.perf_counter() - begin > budget):
            step.restart(prompt)
            synchronise(self.device)
            watch = Stopwatch(self.device)
            watch.mark()
            for _ in range(steps):
                step.run()
            watch.mark()
            seconds += watch.seconds()
        return Timing.of(seconds).per(steps)

    def _eager_step(self, cache: Cache, batch: int) -> _Step:
        token = self.tokens(batch, 1)

        def run() -> None:
            token.copy_(self.model.sampling(self.model.decode(token, cache)))

        return _Step(run, cache.reset, token)

    def _static_step(self, cache: Cache, batch: int) -> _Step:
        token = self.tokens(batch, 1)
        position = torch.zeros(1, dtype=torch.long, device=self.device)

        def step(token: Tensor, position: Tensor) -> None:
            token.copy_(self.model.sampling(self.model.decode_static(token, position, cache)))
            position.add_(1)

        call = self._compiled(step)

        def run() -> None:
            call(token, position)

        replay = self._captured(run) if self.graph else run
        return _Step(replay, position.fill_, token)

    def _captured(self, run: Callable[[], None]) -> Callable[[], None]:
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    @torch.inference_mode()
    def operations(self, phase: Phase, batch: int, prompt: int, output: int = 2,
                   repeats: int = 5, budget: float = 10.0) -> list[Measured]:
        """Each kind of operation of a phase, eager, in decode at the middle of the contexts."""
        if phase == "prefill":
            tokens, cache, start = self.tokens(batch, prompt), self.model.cache(batch, prompt), 0
        else:
            start = prompt + (output - 1) // 2
            tokens, cache = self.tokens(batch, 1), self.cache(batch, start, start + 1)
        clock, counts = OperationClock(self.model, self.device), Counter[str]()
        runs: list[dict[str, float]] = []
        begin = time.perf_counter()
        try:
            while len(runs) <= repeats and not (len(runs) > FEWEST
                                                and time.perf_counter() - begin > budget):
                cache.reset(start)
                seconds, counts = clock.run(lambda: self._first_token(tokens, cache))
                runs.append(seconds)
        finally:
            clock.close()
        parts = work(self.deployment, phase, batch, prompt, output)
        return [self._measured(phase, name, counts[name], batch, prompt, output,
                               Timing.of([r[name] for r in runs[1:]]),
                               parts.get(name, Work(0.0, 0.0))) for name in runs[0]]

    def _measured(self, phase: Phase, name: str, count: int, batch: int, prompt: int, output: int,
                  timing: Timing, w: Work) -> Measured:
        tokens = batch * prompt if phase == "prefill" else batch
        return Measured(phase, name, count, batch, prompt, output, timing, w.flops, w.bytes,
                        tokens)

    def measure(self, batch: int, prompt: int, output: int, repeats: int = 5,
                budget: float = 10.0, operations: bool = True) -> list[Measured]:
        """Prefill and, of more than one output token, decode: whole, then by operation."""
        check_memory(self.spec, self.dtype, batch, prompt, output,
                     free_memory(self.device) + self.weight_bytes,
                     f"batch {batch}, input {prompt}, output {output}")
        found: list[Measured] = []
        phases: list[Phase] = ["prefill", "decode"] if output > 1 else ["prefill"]
        for phase in phases:
            timing = (self.prefill(batch, prompt, repeats, budget) if phase == "prefill"
                      else self.decode(batch, prompt, output, repeats, budget))
            whole = total(work(self.deployment, phase, batch, prompt, output))
            found.append(self._measured(phase, "pass", 1, batch, prompt, output, timing, whole))
            if operations:
                found += self.operations(phase, batch, prompt, output, repeats, budget)
        return found

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights that are allocated."""
        return float(sum(p.numel() * p.element_size() for p in self.model.parameters()))


@dataclass(frozen=True)
class _Step:
    """A decode step, how to start again at a context, and the token that it reads and writes."""

    run: Callable[[], object]
    restart: Callable[[int], object]
    token: Tensor


def measure_phases(model: Model, dtype: str, device: torch.device | str, batch: int, prompt: int,
                   output: int, repeats: int = 5, budget: float = 10.0, compiled: bool = False,
                   graph: bool = False, operations: bool = True) -> list[Measured]:
    """Prefill and decode of one model at one batch and one pair of lengths.

    TooLargeError, before anything is allocated, where the device has no room for it.
    """
    place = find_device(device) if isinstance(device, str) else device
    check_memory(model, dtype, batch, prompt, output, free_memory(place), "the model")
    runner = Runner(model, dtype, place, prompt + output, compiled, graph)
    return runner.measure(batch, prompt, output, repeats, budget, operations)


__all__ = ["DTYPES", "Measured", "Runner", "find_dtype", "measure_phases"]
