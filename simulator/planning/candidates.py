"""Every replica that could serve: device x format x engine x split x engine settings, with its
step and prefill times from the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.allocation import block_of
from simulator.choosing import splits
from simulator.deployment import Deployment, Workload
from simulator.errors import InputError, nearest
from simulator.formats import number_format
from simulator.memory import memory
from simulator.planning.ask import Ask, Offer
from simulator.planning.capacity import Replicas
from simulator.planning.load import Floats, Load
from simulator.request import Estimate, Figure, estimate
from simulator.sharding import Parallelism
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.systems import check_links, node_sizes
from simulator.units import format_memory

BATCHES = 2.0 ** np.arange(12)
# Sequences beside which the cost of a prompt is taken.
BESIDE = 32.0
BUDGETS = (2048, 8192)
MANY_PLACES = 1024
ENDS = ("expected", "low", "high")


@dataclass(frozen=True)
class Candidate:
    """One replica: deployment, engine settings, and its times at each end of their range.

    rows     of the arrays of all candidates
    refused  why it can't be; then there is no profile
    """

    offer: Offer
    format: str
    parallelism: Parallelism
    nodes: int
    deployment: Deployment | None = None
    profile: Profile | None = None
    refused: str = ""

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.parallelism.devices


@dataclass(frozen=True)
class Profile:
    """Times [s] of one replica, and sequences of mean context that its KV memory holds."""

    steps: Figure
    prefill: Figure
    marginal: Figure
    room: float
    detail: Estimate


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


def check_formats(texts: Sequence[str], ask_model: Deployment) -> None:
    """Refuse names of formats that no device could take, before anything is searched."""
    for text in texts:
        formats_of(text, ask_model.hardware, ask_model)


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


def candidates(ask: Ask) -> list[Candidate]:
    """All replicas, those that can't be with the reason. Several nodes only where one is too
    small.
    """
    found: list[Candidate] = []
    for offer in ask.offers:
        for engine in ask.engines:
            for text in ask.formats:
                found += _of_device(ask, offer, engine, text)
    return found


def _of_device(ask: Ask, offer: Offer, engine: Engine, text: str) -> list[Candidate]:
    h, found, fits = offer.hardware, [], False
    try:
        base = formats_of(text, h, Deployment(ask.model, h, engine))
    except InputError as error:
        return [Candidate(offer, text, Parallelism(), 1, refused=str(error))]
    for devices, nodes in _sizes(h, offer.most):
        if nodes > 1 and fits:
            break
        for p in _splits(base, devices):
            c = _candidate(ask, offer, text, base, p, nodes)
            fits |= c.profile is not None
            found.append(c)
    return found


def _candidate(ask: Ask, offer: Offer, text: str, base: Deployment, p: Parallelism,
               nodes: int) -> Candidate:
    load = ask.load
    try:
        d = base.replace(parallelism=p, nodes=nodes)
        check_links(d)
    except InputError as error:
        return Candidate(offer, text, p, nodes, refused=str(error))
    m = memory(d, 1.0, max(load.longest - load.outputs[-1], 1.0), load.outputs[-1])
    if not m.fits:
        return Candidate(offer, text, p, nodes, d, refused="does not fit: "
                         f"{format_memory(float(m.total))} needed a device for one request, "
                         f"{format_memory(float(m.capacity))} there")
    try:
        return Candidate(offer, text, p, nodes, d, profile(d, load))
    except InputError as error:
        return Candidate(offer, text, p, nodes, d, refused=str(error))


def cached_tokens(d: Deployment, load: Load) -> float:
    """Tokens of the shared prefix in the cache: whole blocks."""
    block = block_of(d)
    return float(load.shared_prefix // block * block)


def profile(d: Deployment, load: Load) -> Profile:
    """The times of one replica, from one estimate over batches and prompt lengths."""
    dp, pp, cached = d.parallelism.dp, d.parallelism.pp, cached_tokens(d, load)
    k, g = len(load.prompts), len(BATCHES)
    context = load.context if d.engine.admits == "current" else load.mean_prompt + load.mean_output
    prompts = np.concatenate([load.prompts, load.prompts + BESIDE, [BESIDE]])
    lengths = np.concatenate([np.full(g, max(load.context - 1.0, 1.0)), prompts])
    batch = np.concatenate([BATCHES * dp, np.full(len(prompts), float(dp))])
    hit = np.zeros(len(lengths))
    if cached:
        hit[g:-1] = np.minimum(cached / lengths[g:-1], 1.0)
    asked = d.replace(prefix_hit=hit) if cached else d
    e = estimate(asked, Workload(batch, lengths, 2.0), price=0.0, operations=True)
    # In a pipeline the steps of others wait for the slowest stage alone, not for the whole prompt.
    share = 1.0 / (dp * pp)
    marginal = Figure(*(np.maximum(v[g + k:-1] - v[-1], 0.05 * v[g:g + k]) * share
                        for v in e.ttft.all))
    room = e.memory.max_batch
    if cached or d.engine.admits != "current":
        room = memory(d, 1.0, max(context - cached - 1.0, 1.0), 2.0).max_batch
    return Profile(
        steps=Figure(*(v[:g] for v in e.tpot.all)),
        prefill=Figure(*(v[g:g + k] for v in e.ttft.all)),
        marginal=marginal,
        room=float(np.ravel(room)[0]),
        detail=e,
    )


@dataclass(frozen=True)
class Setting:
    """What the engine is told: tokens of a step and sequences at once, at most."""

    budget: int
    places: int


def settings_of(c: Candidate) -> list[Setting]:
    """Engine settings worth trying for a replica, within what its memory holds."""
    assert c.deployment is not None and c.profile is not None
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

    cached = cached_tokens(parts[0][0].deployment, load) if parts else 0.0  # type: ignore[arg-type]
    fixed = [0.0 if c.deployment is None else c.deployment.engine.request_time for c, _ in parts]
    return Replicas(
        batches=BATCHES, steps=table("steps"), prefill=table("prefill"), marginal=table("marginal"),
        tokens=np.maximum(load.prompts - cached, 1.0),
        budget=column([s.budget for _, s in parts]), places=column([s.places for _, s in parts]),
        room=column([0.0 if p is None else p.room for p in profiles]), fixed=column(fixed),
        load=load)


def check_engine(engine: Engine) -> None:
    """Refuse engines that don't batch continuously: their queue is another one."""
    if not (engine.continuous or engine.ideal):
        raise InputError(f"--engine: '{engine.name}' has no continuous batching, which a plan "
                         f"counts on{nearest('vllm', ['vllm', 'sglang', 'tensorrt-llm'])}")
