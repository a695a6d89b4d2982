"""What a plan is asked: a model, a traffic, targets, and what may be bought."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.errors import InputError, nearest
from simulator.planning.load import Load, burstiness_of
from simulator.serving.arrivals import Arrivals, check_rate
from simulator.serving.lengths import Lengths
from simulator.serving.requests import Counts, Requests, requests_of
from simulator.serving.requests import within_positions as served_within
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import Model

UNSPECIFIED = ("announced", "hypothetical")
# Lengths that a distribution is drawn as, and window [s] over which arrivals are counted.
SAMPLE, WINDOW = 20_000, 10.0
UTILISATION = 0.85


@dataclass(frozen=True)
class Offer:
    """A device that may be bought: at most `most` of it (None: any number), at `price` [USD/h]."""

    hardware: Hardware
    most: int | None
    price: float | None


@dataclass(frozen=True)
class Ask:
    """A question to the planner. Times [s], rates [1/s] of the whole service, money in USD/h.

    requests      lengths, and arrivals where they come from a trace
    ttft, tpot    targets of the 99th percentile; None: none
    formats       texts such as `own`, `fp8`, `fp8/fp8/fp8` (weights/activations/KV)
    utilisation   largest share of the saturation rate that a plan may use
    """

    model: Model
    offers: tuple[Offer, ...]
    engines: tuple[Engine, ...]
    rate: float
    requests: Requests
    load: Load
    ttft: float | None = None
    tpot: float | None = None
    formats: tuple[str, ...] = ("own",)
    max_cost: float | None = None
    utilisation: float = UTILISATION
    traced: bool = False
    arrivals: Arrivals = field(default_factory=Arrivals)
    notes: tuple[str, ...] = ()


def made_up(prompt: Lengths, output: Lengths, rate: float, arrivals: Arrivals, n: int,
            seed: int = 0, shared_prefix: int = 0) -> Requests:
    """n requests of made-up arrivals and lengths, repeatable by the seed."""
    rng = np.random.default_rng(seed)
    return requests_of(arrivals.times(n, rate, rng), prompt.draw(n, rng), output.draw(n, rng),
                       shared_prefix)


def within_positions(r: Requests, model: Model, where: str = "requests"
                     ) -> tuple[Requests, tuple[str, ...]]:
    """Without the requests that are longer than the model's context, counted and said; refused
    where all are.
    """
    kept, beyond = served_within(r, model, where)
    if not beyond:
        return r, ()
    notes = tuple(f"{where}: {n:,} of {len(r):,} requests left out: {reason}"
                  for reason, n in beyond.items())
    return replace(kept, dropped={**r.dropped, **beyond}), notes


def check_prefix(r: Requests, where: str) -> None:
    """Refuse a shared prefix that is longer than every prompt, or beside prefixes of a trace."""
    longest = int(r.input.max())
    if r.shared_prefix > longest:
        raise InputError(f"--shared-prefix: {r.shared_prefix:,} tokens are longer than every "
                         f"prompt; the longest of {where} has {longest:,}")
    if r.shared_prefix and r.blocks is not None:
        raise InputError("--shared-prefix: the trace has prefix blocks of its own; leave it out")


def load_of(r: Requests, traced: bool, arrivals: Arrivals) -> Load:
    """The load of requests: burstiness counted in a trace, known otherwise."""
    burst = burstiness_of(r.arrival, WINDOW) if traced else max(arrivals.cv**2, 1e-3)
    return Load.of(r.input, r.output, burst, r.shared_prefix)


def check_targets(ttft: float | None, tpot: float | None, max_cost: float | None,
                  utilisation: float) -> None:
    """Refuse targets that are no times, costs that are no money, shares that are no shares."""
    for flag, value in (("--ttft-p99", ttft), ("--tpot-p99", tpot)):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise InputError(f"{flag}: {value:g} s is not above 0 and finite")
    if max_cost is not None and not (math.isfinite(max_cost) and max_cost > 0.0):
        raise InputError(f"--max-cost: {max_cost:g} USD/h is not above 0 and finite")
    if not 0.05 <= utilisation <= 0.98:
        raise InputError(f"--max-utilisation: {utilisation:g} is not between 0.05 and 0.98; a "
                         "queue has no steady state at 1")


def offers(text: str | None, prices: Mapping[str, float], announced: bool) -> tuple[Offer, ...]:
    """Devices of `a100,8xh100`; without a list every device with a price in the catalogue.

    Announced and hypothetical ones only by name, or where `announced` asks for them.
    """
    from simulator.specs.catalogue import catalogue, load_hardware, split_devices

    named = [] if text is None else [part.strip() for part in text.split(",")]
    if any(not name for name in named):
        raise InputError(f"--hardware: '{text}' has an empty entry; write names with commas")
    found: dict[str, Offer] = {}
    priced = {load_hardware(name).name: usd for name, usd in prices.items()}
    everything = text is None or [n.lower() for n in named] == ["all"]
    for word in sorted(catalogue("hardware")) if everything else named:
        most, name = (None, word) if everything else split_devices(word)
        h = load_hardware(name)
        if everything and h.status in UNSPECIFIED and not announced:
            continue
        price = priced.get(h.name, None if h.price is None else float(h.price) * 3600.0)
        if text is None and price is None and h.status not in UNSPECIFIED:
            continue
        if most is not None and not 1 <= most <= 100_000:
            raise InputError(f"--hardware: '{word}': {most} devices, must be between 1 and 100,000")
        if h.name in found and found[h.name].most != most:
            raise InputError(f"--hardware: '{h.name}' stands there twice")
        found[h.name] = Offer(h, most, price)
    unknown = sorted(set(priced) - set(found))
    if unknown:
        raise InputError(f"--price: '{unknown[0]}' is none of the devices asked for"
                         f"{nearest(unknown[0], found)}")
    if not found:
        raise InputError("--hardware: no device is left to choose from")
    return tuple(found.values())


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """`h100=2.5`: USD/h of one device, by name."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = (part.strip() for part in text.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not equals or not name or not (math.isfinite(value) and value > 0.0):
            raise InputError(f"--price: '{text}' is not NAME=USD with a price above 0, write for "
                             "example h100=2.5 (USD an hour and device)")
        if name in found:
            raise InputError(f"--price: '{name}' is given twice")
        found[name] = value
    return found


def rate_of(r: Requests, rate: float | None) -> float:
    """The rate asked for, else the mean one of a trace."""
    found = r.rate if rate is None else rate
    if rate is None and not (math.isfinite(found) and found > 0.0):
        raise InputError("rate: the requests of the trace arrive at once: give --rate")
    return check_rate(found, "--rate")


def drawn_lengths(prompt: Lengths, output: Lengths) -> int:
    """Requests to draw for the load: one where every length is the same."""
    return 1 if prompt.is_fixed and output.is_fixed else SAMPLE


__all__ = ["SAMPLE", "UNSPECIFIED", "UTILISATION", "Ask", "Counts", "Offer", "check_prefix",
           "check_targets", "drawn_lengths", "load_of", "made_up", "offers",
           "parse_prices", "rate_of", "within_positions"]
