"""Every replica that could serve: device x format x engine x split x engine settings, with its
step and prefill times from the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from simulator.allocation import block_of
from simulator.arrays import Array
from simulator.choosing import splits
from simulator.deployment import Deployment, Workload
from simulator.errors import InputError, nearest
from simulator.formats import number_format
from simulator.memory import memory
from simulator.planning.ask import Ask, Offer
from simulator.planning.capacity import Replicas
from simulator.planning.load import Floats, Load
from simulator.request import Figure, estimate
from simulator.serving.policy import Policy
from simulator.sharding import Parallelism
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.stack import UnstackableError, stack
from simulator.systems import check_links, node_sizes
from simulator.units import format_memory

BATCHES: Floats = np.exp2(np.arange(12, dtype=np.float64))
# Sequences beside which the cost of a prompt is taken.
BESIDE = 256.0
BUDGETS = (2048, 8192)
MANY_PLACES = 1024
ENDS = ("expected", "low", "high")
# Powers of the factor of a range that ceiling, expectation, low and high end have.
_POWERS = (0, 0, -1, 1)


@dataclass(frozen=True)
class Profile:
    """Times [s] of one replica at each end of their range, and what one of its devices does.

    steps          decode step of each of `BATCHES`; prefill: a prompt of each length alone;
                   marginal: what a prompt adds to steps that run anyway
    room           sequences of mean context that the KV memory holds
    step_work, prompt_work   (bytes, FLOPs, wire bytes) of one device by batch and by length
    """

    steps: Figure
    prefill: Figure
    marginal: Figure
    room: float
    step_work: tuple[Floats, Floats, Floats]
    prompt_work: tuple[Floats, Floats, Floats]


@dataclass(frozen=True)
class Candidate:
    """One replica of a device in a format. `refused`: why it can't be; then it has no profile."""

    offer: Offer
    format: str
    parallelism: Parallelism
    nodes: int
    base: Deployment | None = None
    profile: Profile | None = None
    refused: str = ""

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.parallelism.devices

    @cached_property
    def deployment(self) -> Deployment:
        """The deployment of one replica."""
        assert self.base is not None
        return self.base.replace(parallelism=self.parallelism, nodes=self.nodes)

    @property
    def shares_steps(self) -> bool:
        """Whether prompts ride in steps that decode; else decoding waits for passes of theirs."""
        assert self.base is not None
        return Policy.of(self.base).scheduler == "chunked"


def formats_of(text: str, h: Hardware, d: Deployment) -> Deployment:
    """The deployment in a format: `own`, `weights/activations/kv`, or weights alone.

    Weights alone are served as engines do: with activations in the same format where the device
    multiplies it (fp8, int8, fp4), else expanded to 16 bits.
    """
    parts = [part.strip().lower() for part in text.split("/")]
    if len(parts) > 3 or not all(parts):
        raise InputError(f"--formats: '{text}' is not weights, weights/activations or "
                         "weights/activations/kv")
    weights = None if parts[0] == "own" else number_format(parts[0], "--formats").name
    if len(parts) > 1:
        return d.replace(weights=weights, activations=number_format(parts[1], "--formats").name,
                         kv=number_format(parts[2], "--formats").name if len(parts) > 2 else None)
    if weights is None:
        return d
    compute = number_format(weights).compute
    native = compute in ("fp8", "int8", "fp4") and getattr(h, f"peak_{compute}") is not None
    return d.replace(weights=weights, activations=weights if native else "bf16",
                     kv=d.model.kv_format or "bf16")


def check_format(text: str) -> None:
    """Refuse names of formats that no device could take, before anything is searched."""
    parts = [part.strip().lower() for part in text.split("/")]
    for i, part in enumerate(parts):
        if i or part != "own":
            number_format(part, "--formats")


def _sizes(h: Hardware, most: int | None) -> Iterator[tuple[int, int]]:
    for devices, nodes in node_sizes(h):
        if most is None or devices <= most:
            yield devices, nodes


def _splits(d: Deployment, devices: int) -> Iterator[Parallelism]:
    """Splits of one replica: data parallel only where the replicas share experts.

    Replicas that share nothing are counted apart.
    """
    for p in splits(d.model, devices):
        whole = p.ep == p.tp * p.dp
        if (p.dp == 1 and p.ep in (1, p.tp)) or (p.dp > 1 and p.ep > 1 and whole):
            yield p


Found = tuple[Parallelism, int, Profile | None, str]


def candidates(ask: Ask, executor: Executor | None = None) -> list[Candidate]:
    """All replicas, those that can't be with the reason. Several nodes only where one is too
    small. An executor works out the devices and formats side by side.
    """
    found: list[Candidate] = []
    asked: list[tuple[Offer, str, Deployment]] = []
    for offer in ask.offers:
        for engine in ask.engines:
            for text in ask.formats:
                try:
                    base = formats_of(text, offer.hardware,
                                      Deployment(ask.model, offer.hardware, engine))
                except InputError as error:
                    found.append(Candidate(offer, text, Parallelism(), 1, refused=str(error)))
                    continue
                asked.append((offer, text, base))
    # Devices in the same format are one calculation; groups of them go side by side.
    groups: dict[tuple[str, str], list[int]] = {}
    for i, (_, text, base) in enumerate(asked):
        groups.setdefault((base.engine.name, text), []).append(i)
    run = map if executor is None else executor.map
    job = partial(_of_devices, load=ask.load)
    parts: dict[int, list[Found]] = {}
    for group, found_by in zip(groups.values(), run(
            job, [[asked[i][2] for i in group] for group in groups.values()],
            [[asked[i][0].most for i in group] for group in groups.values()]), strict=True):
        parts |= dict(zip(group, found_by, strict=True))
    for i, (offer, text, base) in enumerate(asked):
        found += [Candidate(offer, text, p, nodes, base, profile, refused)
                  for p, nodes, profile, refused in parts[i]]
    return found


Ready = dict[Parallelism, Profile]


def _of_devices(bases: Sequence[Deployment], mosts: Sequence[int | None], load: Load
                ) -> list[list[Found]]:
    ready = _together(bases, mosts, load)
    return [_of_device(base, most, load, done)
            for base, most, done in zip(bases, mosts, ready, strict=True)]


def _together(bases: Sequence[Deployment], mosts: Sequence[int | None], load: Load) -> list[Ready]:
    """Profiles of the splits within a node, for all devices that may be stacked at once."""
    ready: list[Ready] = [{} for _ in bases]
    asked: dict[tuple[Parallelism, str | None, str, str | None],
                list[tuple[int, Deployment]]] = {}
    for i, (base, most) in enumerate(zip(bases, mosts, strict=True)):
        if base.hardware.kernels or base.hardware.caches:
            continue                        # measured devices have a clock of their own
        for devices, nodes in _sizes(base.hardware, most):
            for p in _splits(base, devices) if nodes == 1 else ():
                with suppress(InputError):
                    d = base.replace(parallelism=p, nodes=1)
                    check_links(d)
                    asked.setdefault((p, d.weights, d.activations, d.kv), []).append((i, d))
    for (p, *_), group in asked.items():
        # What can't be stacked is worked out alone, where it is asked for.
        with suppress(InputError, UnstackableError), np.errstate(all="ignore"):
            if len(group) > 1:
                found = profiles([d for _, d in group], load)
                for (i, _), x in zip(group, found, strict=True):
                    ready[i][p] = x
    return ready


def _of_device(base: Deployment, most: int | None, load: Load, ready: Ready) -> list[Found]:
    found: list[Found] = []
    fits = False
    for devices, nodes in _sizes(base.hardware, most):
        if nodes > 1 and fits:
            break
        for p in _splits(base, devices):
            profile, refused = _profiled(base, p, nodes, load, fits,
                                         ready.get(p) if nodes == 1 else None)
            fits |= profile is not None
            found.append((p, nodes, profile, refused))
    return found


def _profiled(base: Deployment, p: Parallelism, nodes: int, load: Load, likely: bool,
              ready: Profile | None) -> tuple[Profile | None, str]:
    """The profile of a split, or why there is none. `likely`: fewer devices hold the model."""
    try:
        d = base.replace(parallelism=p, nodes=nodes)
        check_links(d)
        found = ready or (profile(d, load) if likely else None)
        if found is None or found.room < load.longest / load.context:
            m = memory(d, 1.0, max(load.longest - load.outputs[-1], 1.0), load.outputs[-1])
            if not m.fits:
                return None, (f"does not fit: {format_memory(float(m.total))} needed a device for "
                              f"one request, {format_memory(float(m.capacity))} there")
        return found or profile(d, load), ""
    except InputError as error:
        return None, str(error)


def cached_tokens(d: Deployment, load: Load) -> float:
    """Tokens of the shared prefix in the cache: whole blocks."""
    block = block_of(d)
    return float(load.shared_prefix // block * block)


def profile(d: Deployment, load: Load) -> Profile:
    """The times of one replica."""
    return profiles([d], load)[0]


def profiles(each: Sequence[Deployment], load: Load) -> list[Profile]:
    """The times of a replica of each device, from one estimate over devices, batches and prompt
    lengths; the deployments differ in the device alone.
    """
    first, n = each[0], len(each)
    d = first if n == 1 else first.replace(hardware=stack([x.hardware for x in each]))
    dp, pp, cached = d.parallelism.dp, d.parallelism.pp, cached_tokens(d, load)
    k, g = len(load.prompts), len(BATCHES)
    context = load.context if d.engine.admits == "current" else load.mean_prompt + load.mean_output
    prompts = np.concatenate([load.prompts, load.prompts + BESIDE, [BESIDE]])
    lengths = np.concatenate([np.full(g, max(load.context - 1.0, 1.0)), prompts])
    batch = np.concatenate([BATCHES * dp, np.full(len(prompts), float(dp))])
    hit = np.zeros(len(lengths))
    if cached:
        hit[g:-1] = np.minimum(cached / lengths[g:-1], 1.0)
    # Stacked devices lie along the first of four axes.
    shape = (-1,) if n == 1 else (1, -1, 1, 1)
    asked = d.replace(prefix_hit=hit.reshape(shape)) if cached else d
    e = estimate(asked, Workload(batch.reshape(shape), lengths.reshape(shape), 2.0), price=0.0,
                 operations=True)

    def rows(value: Array) -> Floats:
        """[device, row]."""
        whole = (len(lengths),) if n == 1 else (n, len(lengths), 1, 1)
        found: Floats = np.broadcast_to(np.asarray(value, dtype=np.float64), whole)
        return found.reshape(n, -1)

    room = e.memory.max_batch
    if cached or d.engine.admits != "current":
        room = memory(d, 1.0, max(context - cached - 1.0, 1.0), 2.0).max_batch
    step, ttft = ([rows(v) for v in figure.all] for figure in (e.tpot, e.ttft))
    work = [[rows(getattr(phase.detail, name)) for name in ("bytes", "flops", "wire")]
            for phase in (e.decode, e.prefill)]
    # In a pipeline the steps of others wait for the slowest stage alone, not for the whole prompt.
    share = 1.0 / (dp * pp)
    # Both prompts of a difference carry the factor of the range that the asked one has.
    wide = rows(e.efficiency.prefill_spread(e.workload.input))
    own, longer, least = wide[:, g:g + k], wide[:, g + k:-1], wide[:, -1:]
    marginal = [np.maximum(
        v[:, g + k:-1] * (own / longer)**power - v[:, -1:] * (own / least)**power,
        0.05 * v[:, g:g + k]) * share for v, power in zip(ttft, _POWERS, strict=True)]
    rooms = rows(room)
    return [Profile(
        steps=Figure(*(v[i, :g] for v in step)),
        prefill=Figure(*(v[i, g:g + k] for v in ttft)),
        marginal=Figure(*(v[i] for v in marginal)),
        room=float(rooms[i, 0]),
        step_work=_of_row(work[0], i, slice(0, g)),
        prompt_work=_of_row(work[1], i, slice(g, g + k)),
    ) for i in range(n)]


def _of_row(work: Sequence[Floats], i: int, part: slice) -> tuple[Floats, Floats, Floats]:
    """(bytes, FLOPs, wire bytes) of a pass on one device, for some rows."""
    moved, flops, wire = (v[i, part].copy() for v in work)
    return moved, flops, wire


@dataclass(frozen=True)
class Setting:
    """What the engine is told: tokens of a step and sequences at once, at most."""

    budget: int
    places: int


def settings_of(c: Candidate) -> list[Setting]:
    """Engine settings worth trying for a replica, within what its memory holds."""
    assert c.profile is not None
    engine, room = c.deployment.engine, int(c.profile.room)
    budgets = BUDGETS if engine.batched_tokens is not None else (BUDGETS[-1],)
    if engine.prefill_chunk is not None:
        budgets = (engine.prefill_chunk,)
    usual = engine.max_sequences or 256
    places = sorted({max(min(usual, room), 1), max(min(MANY_PLACES, room), 1)})
    return [Setting(b, n) for b in budgets for n in places if n <= b]


def replicas(parts: Sequence[tuple[Candidate, Setting]], load: Load,
             end: str = "expected") -> Replicas:
    """The arrays of candidates and settings that the formulas take."""
    profiles = [c.profile for c, _ in parts]

    def column(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    def table(name: str) -> Floats:
        return np.array([getattr(getattr(p, name), end) for p in profiles], dtype=np.float64)

    cached = cached_tokens(parts[0][0].deployment, load) if parts else 0.0
    fixed = [c.deployment.engine.request_time for c, _ in parts]
    prefill, marginal = table("prefill"), table("marginal")
    # Passes of prompts alone, as the simulation's scheduler has them.
    alone = column([not c.shares_steps for c, _ in parts])
    shared = column([c.parallelism.dp * c.parallelism.pp for c, _ in parts])
    passes = alone * np.maximum((prefill / shared[:, None] - marginal) @ load.prompt_weights, 1e-9)
    return Replicas(
        batches=BATCHES, steps=table("steps"), prefill=prefill, marginal=marginal, passes=passes,
        again=column([_again(c, s, load, cached) for c, s in parts]),
        tokens=np.maximum(load.prompts - cached, 1.0),
        budget=column([s.budget for _, s in parts]), places=column([s.places for _, s in parts]),
        room=column([0.0 if p is None else p.room for p in profiles]), fixed=column(fixed),
        load=load)


def _again(c: Candidate, s: Setting, load: Load, cached: float) -> float:
    """o / (2 s): prompts of s that take the blocks which a request of s + o frees, and of which
    every second is preempted as the others grow; 0 where memory isn't what limits the batch.
    """
    if c.profile is None or c.deployment.engine.admits != "current":
        return 0.0
    whole = load.mean_prompt + load.mean_output - cached
    if s.places * whole <= c.profile.room * max(load.context - cached, 1.0):
        return 0.0
    return load.mean_output / (2.0 * max(load.mean_prompt - cached, 1.0))


def check_engine(engine: Engine) -> None:
    """Refuse engines that don't batch continuously: their queue is another one."""
    if not (engine.continuous or engine.ideal):
        raise InputError(f"--engine: '{engine.name}' has no continuous batching, which a plan "
                         f"counts on{nearest('vllm', ['vllm', 'sglang', 'tensorrt-llm'])}")
