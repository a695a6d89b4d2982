"""Levels of a chip from rows that somebody measured on it: fitted on one part, scored on the other.

Three constants, each with a meaning: the factor on the time of bytes, the factor on the time of
arithmetic, and what the machine's host adds to a step. A constant that the rows don't determine
stays as it was. Too few rows, or rows faster than physics allows, are refused.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.calibration.bench_files import CSV_TOOL, Placed
from simulator.deployment import Deployment
from simulator.efficiency.levels import level_of
from simulator.errors import InputError
from simulator.specs.hardware import Hardware
from simulator.validation import names
from simulator.validation.cases import Case, cases_of
from simulator.validation.predict import predict
from simulator.validation.reasons import beats_ceiling
from simulator.validation.scores import Scored

# Phases that kernels decide. Under load TTFT is queueing, and short prompts measure launches.
FITTED = ("batch1_decode", "prefill", "static_throughput", "tpot")
WHY_NOT = {"ttft": "TTFT under load, which queueing decides",
           "max_throughput": "the largest throughput, which memory and the scheduler decide",
           "prefill_short": "a prompt so short that launches decide",
           "memory": "a size, not a time"}
FEWEST_ROWS, FEWEST_GROUPS = 6, 4
# One constant for each so many rows that it is fitted on.
ROWS_A_CONSTANT = 2
# Models from which on whole models are held back; else runs are.
MODELS_TO_SPLIT = 4
# |ln error| above which a row counts less and less, and the least noise of a row.
ROBUST, NOISE = 0.1, 0.03
# Spread of the logarithm of a level before any row is seen, and of the host's time [s].
LEVEL_PRIOR, HOST_PRIOR = 0.7, 2e-3
# Times by which a chip may be slower than thought, from where a search starts.
SLOWER = (1.0, 1.4, 2.0, 3.0)
# Steps of the search from each start, before the best of them goes on.
FIRST_STEPS = 8
# Step of slopes, as a share of that spread.
STEP = 1e-3
# Largest relative error of a level, and of the host's time as a share of the median step, at which
# the rows determine it.
DETERMINED = 0.1
# Share of rows that must be possible before the others may be dropped.
MAJORITY = 0.75
# By so much the held-back rows may get worse: no more than they are noisy.
WORSE = 0.02

CONSTANTS = ("memory_level", "compute_level", "step_overhead")
# Of constants that rows can't tell apart the chip's memory is the last to be left as it was.
DROPPED_FIRST = ("step_overhead", "compute_level", "memory_level")
MEANINGS = {"memory_level": "factor on the time of bytes",
            "compute_level": "factor on the time of arithmetic",
            "step_overhead": "host time a step on this machine, beyond the engine's"}
# What tells a constant, where the rows don't.
TOLD_BY = {"memory_level": "decode at small batches", "compute_level": "prompts of 512 tokens "
           "and more, alone or in prefill", "step_overhead": "decode of models of several sizes"}

AT_CAP = ("its kernels are at the most that one reaches, so a faster level changes nothing; the "
          "rows are as fast or faster")


@dataclass(frozen=True)
class Constant:
    """A constant before and after; `error` of one standard deviation; `why` it stayed, or ''."""

    name: str
    before: float
    after: float
    error: float | None
    why: str = ""


@dataclass(frozen=True)
class Errors:
    """|ln(predicted/measured)| of some rows: median and ninth decile, and the signed median."""

    n: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, errors: Array) -> Errors:
        """Of ln(predicted/measured)."""
        size = np.abs(errors)
        return cls(len(errors), float(np.median(size)), float(np.quantile(size, 0.9)),
                   float(np.median(errors)))


@dataclass(frozen=True)
class Impossible:
    """A row that is faster than the ceiling of its stated conditions, in its own unit."""

    place: str
    row: str
    metric: str
    measured: float
    ceiling: float


@dataclass
class ChipFit:
    """What was fitted, on what, and what it is worth; `refused` says why nothing was.

    files     rows read by file and tool; used: rows fitted or scored; not_used: reason -> rows
    split     what is held back together: `model` or `run`
    """

    hardware: Hardware
    engines: tuple[str, ...]
    files: dict[tuple[str, str], int]
    not_used: dict[str, int]
    used: int = 0
    groups: int = 0
    split: str = "run"
    dates: tuple[str, ...] = ()
    constants: tuple[Constant, ...] = ()
    fitted_before: Errors | None = None
    fitted_after: Errors | None = None
    held_before: Errors | None = None
    held_after: Errors | None = None
    impossible: list[Impossible] = field(default_factory=list)
    dropped: int = 0
    refused: str = ""

    @property
    def fitted(self) -> tuple[Constant, ...]:
        """The constants that the rows determine."""
        return tuple(c for c in self.constants if not c.why)


def fit_chip(placed: Sequence[Placed], drop_impossible: bool = False) -> ChipFit:
    """The constants of the one device that the rows were measured on."""
    cases, places, not_used = _cases(placed)
    hardware = _device(placed, cases)
    files = Counter((p.place.split(": ")[0], p.tool) for p in placed)
    found = ChipFit(hardware, tuple(sorted({c.setup.engine for c in cases})), dict(files),
                    not_used, dates=tuple(sorted({c.row.date for c in cases if c.row.date})))
    cases = _possible(cases, places, found, drop_impossible)
    found.used = len(cases)
    if found.refused or _too_few(cases, found):
        return found
    mine = _fit_part(cases, found)
    return _fitted(cases, mine, found)


def _cases(placed: Sequence[Placed]) -> tuple[list[Case], list[str], dict[str, int]]:
    """(cases to fit or score, where each stands, reasons for the others)."""
    reasons: Counter[str] = Counter(p.loose for p in placed if p.loose)
    good = [p for p in placed if not p.loose]
    cases, missing = cases_of([p.row for p in good])
    reasons.update(missing.values())
    reasons.update(WHY_NOT.get(c.phase, c.phase) for c in cases if c.phase not in FITTED)
    kept = [c for c in cases if c.phase in FITTED]
    return kept, [good[c.index].place for c in kept], dict(reasons.most_common())


def _device(placed: Sequence[Placed], cases: Sequence[Case]) -> Hardware:
    """The one device of all rows that can be used, else of all rows."""
    printed = sorted({c.setup.hardware for c in cases} or {
        p.row.hardware for p in placed if not p.loose} or {p.row.hardware for p in placed})
    devices: dict[str, Hardware] = {}
    for name in printed:
        try:
            device = names.hardware_of(name)
        except InputError as error:
            if len(printed) == 1:
                raise InputError(f"{placed[0].place}: {error}; say --hardware NAME") from None
            continue
        devices[device.name] = device
    if len(devices) != 1:
        told = ", ".join(list(devices)[:6]) or "none that is in the catalogue"
        tool = " (rows of a measurement CSV that are of others are left out)" if any(
            p.tool == CSV_TOOL for p in placed) else ""
        raise InputError(f"the rows are of {len(devices)} devices ({told}); say which one is "
                         f"fitted by --hardware NAME{tool}")
    return next(iter(devices.values()))


def _possible(cases: list[Case], places: list[str], found: ChipFit, drop: bool) -> list[Case]:
    """The cases that physics allows; `found` is refused where others must not be dropped."""
    if not cases:
        return cases
    predictions = predict(cases)
    for case, place, expected, ceiling in zip(cases, places, predictions.expected,
                                              predictions.ceiling, strict=True):
        scored = Scored(case, float(expected), 0.0, 0.0, float(ceiling), False)
        if beats_ceiling(scored):
            found.impossible.append(Impossible(
                place, _conditions(case), case.row.metric, case.row.value, float(ceiling)))
    bad = {(i.place, i.metric) for i in found.impossible}
    good = [c for c, place in zip(cases, places, strict=True) if (place, c.row.metric) not in bad]
    if not bad:
        return good
    clear = len(good) >= MAJORITY * len(cases)
    if drop and clear:
        found.dropped = len(cases) - len(good)
        return good
    found.refused = (f"{len(cases) - len(good)} of {len(cases)} rows are faster than physics "
                     "allows under the conditions stated: is the device, its count (--tp), the "
                     "format of the weights or speculation another?")
    if clear:
        found.refused += " --drop-impossible fits without them."
    elif drop:
        found.refused += f" Dropped are they only where {MAJORITY:.0%} are possible."
    return good


def _conditions(case: Case) -> str:
    batch = "" if case.batch is None else f"batch {case.batch:g}, "
    return f"{case.row.model}, {batch}{case.input:.0f} + {case.output:.0f} tokens"


def _too_few(cases: Sequence[Case], found: ChipFit) -> bool:
    found.split = "model" if len({names.model_of(c.row.model)[0].name for c in cases}
                                 ) >= MODELS_TO_SPLIT else "run"
    found.groups = len({_group(c, found.split) for c in cases})
    if len(cases) >= FEWEST_ROWS and found.groups >= FEWEST_GROUPS:
        return False
    found.refused = (f"{len(cases)} rows of {found.groups} runs can be used, at least "
                     f"{FEWEST_ROWS} rows of {FEWEST_GROUPS} runs are needed to fit on some and "
                     "score the others")
    return True


def _group(case: Case, split: str) -> Hashable:
    """Rows of a group stand or fall together: those of a model, or of one run of a benchmark."""
    model = names.model_of(case.row.model)[0].name
    return model if split == "model" else (model, case.setup, case.batch, case.input, case.output)


def _fit_part(cases: Sequence[Case], found: ChipFit) -> Array:
    """True for every second group, in the order of a checksum, within each mix of phases."""
    phases: dict[Hashable, set[str]] = {}
    for case in cases:
        phases.setdefault(_group(case, found.split), set()).add(case.phase)
    order = sorted(phases, key=lambda g: (sorted(phases[g]), zlib.crc32(repr(g).encode())))
    fitted = set(order[::2])
    return np.array([_group(c, found.split) in fitted for c in cases])


class _Problem:
    """ln(predicted/measured) of cases as a function of the constants.

    A level is in by its logarithm, the host's time by itself [s].
    """

    def __init__(self, cases: Sequence[Case], hardware: Hardware) -> None:
        self.cases = cases
        self.value = np.array([c.row.value for c in cases])
        level = level_of(hardware)
        self.before = {"memory_level": float(level.memory), "compute_level": float(level.compute),
                       "step_overhead": float(hardware.step_overhead or 0.0)}

    def errors(self, constants: dict[str, float], rows: Array) -> Array:
        """ln(predicted/measured) of the rows."""
        mine = [c for c, use in zip(self.cases, rows, strict=True) if use]

        def change(d: Deployment) -> Deployment:
            return d.replace(hardware=d.hardware.replace(**constants))

        return np.log(predict(mine, change).expected / self.value[rows])

    def at_cap(self, constants: dict[str, float], name: str, rows: Array) -> bool:
        """Whether a tenth less of a level changes no prediction."""
        if name == "step_overhead":
            return False
        faster = self.errors(constants | {name: 0.9 * constants[name]}, rows)
        return bool(np.allclose(faster, self.errors(constants, rows), rtol=0.0, atol=1e-6))

    def fit(self, free: Sequence[str], rows: Array) -> tuple[dict[str, float], dict[str, float]]:
        """(constants with those of `free` fitted on the rows, their standard errors)."""
        from scipy.optimize import least_squares

        start = np.array([_inward(n, self.before[n]) for n in free])
        prior = np.array([_prior(n) for n in free])

        def constants(x: Array) -> dict[str, float]:
            return self.before | {n: _outward(n, float(v)) for n, v in zip(free, x, strict=True)}

        def residuals(x: Array) -> Array:
            error = self.errors(constants(x), rows)
            soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + (error / ROBUST) ** 2) - 1.0))
            return np.concatenate([soft * ROBUST / NOISE, (x - start) / prior])

        def slopes(x: Array) -> Array:
            # Steps in the scale of each unknown: the host's time may start at zero.
            at, h = residuals(x), STEP * prior
            return np.stack([(residuals(x + h * (np.arange(len(x)) == i)) - at) / h[i]
                             for i in range(len(x))], axis=1)

        low = np.array([0.0 if n == "step_overhead" else -3.0 for n in free])
        # Kernels at their caps have no slope, so that a search must start on the slower side too.
        starts = [np.maximum(start + np.array(more), low + STEP * prior) for more in product(*(
            (0.0,) if n == "step_overhead" else np.log(SLOWER) for n in free))]
        def search(x: Array, steps: int) -> Any:
            return least_squares(residuals, x, slopes, bounds=(low, np.inf), x_scale=prior,
                                 max_nfev=steps)

        # The nearest start may lie where kernels are at their caps, and stay there.
        best = min((search(x, FIRST_STEPS) for x in starts), key=lambda r: float(r.cost))
        found = search(best.x, 30)
        noise = max(1.0, float(np.median(np.abs(found.fun[:-len(free)]))) * 1.4826)
        data = np.asarray(found.jac)[:-len(free)]
        normal = data.T @ data / noise**2 + np.diag(prior**-2)
        spread = np.sqrt(np.diag(np.linalg.inv(normal)))
        return constants(found.x), dict(zip(free, map(float, spread), strict=True))


def _inward(name: str, value: float) -> float:
    return value if name == "step_overhead" else float(np.log(value))


def _outward(name: str, value: float) -> float:
    return value if name == "step_overhead" else float(np.exp(value))


def _prior(name: str) -> float:
    return HOST_PRIOR if name == "step_overhead" else LEVEL_PRIOR


def _fitted(cases: Sequence[Case], mine: Array, found: ChipFit) -> ChipFit:
    """The fit on the rows `mine`, one constant fewer until each is determined."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError("fitting needs scipy: pip install 'tokline[fit]'") from None
    problem = _Problem(cases, found.hardware)
    step = _median_step(cases)
    why: dict[str, str] = {}
    free = list(CONSTANTS)
    while free:
        after, spread = problem.fit(free, mine)
        relative = {n: spread[n] / (step if n == "step_overhead" else 1.0) for n in free}
        vague = [n for n in free if relative[n] > DETERMINED]
        if vague:
            # The slower memory and the slower host of one model at one length look the same.
            least = free if "memory_level" in vague else vague
            drop = next(n for n in DROPPED_FIRST if n in least)
            why[drop] = (AT_CAP if problem.at_cap(after, drop, mine) else
                         f"these rows don't determine it; {TOLD_BY[drop]} would")
        elif len(free) * ROWS_A_CONSTANT > int(np.sum(mine)):
            drop = next(n for n in DROPPED_FIRST if n in free)
            why[drop] = f"{int(np.sum(mine))} rows are too few for {len(free)} constants"
        else:
            break
        free.remove(drop)
    if "compute_level" in why and not any(c.phase == "prefill" for c in cases):
        why["compute_level"] = "no row of prefill"
    if not free:
        found.refused = "the rows determine no constant of the chip: " + "; ".join(
            f"{n}: {text}" for n, text in why.items())
        return found
    found.constants = tuple(Constant(n, problem.before[n], after[n], spread.get(n), why.get(n, ""))
                            for n in CONSTANTS)
    before = problem.errors(problem.before, np.ones_like(mine))
    final = problem.errors(after, np.ones_like(mine))
    found.fitted_before, found.fitted_after = Errors.of(before[mine]), Errors.of(final[mine])
    found.held_before, found.held_after = Errors.of(before[~mine]), Errors.of(final[~mine])
    if found.held_after.median > found.held_before.median + WORSE:
        found.refused = (f"on rows held back the fitted constants are worse, "
                         f"{found.held_after.median:.1%} against {found.held_before.median:.1%} "
                         "before: the runs contradict each other, or are too few")
    return found


def _median_step(cases: Sequence[Case]) -> float:
    """A typical decode step of the rows [s], against which the host's time is small or large."""
    steps = [1e-3 * c.row.value if c.row.metric == "tpot_ms" else 1.0 / c.row.value
             for c in cases if c.row.metric in ("tpot_ms", "decode_tok_s_per_user")]
    return float(np.median(steps)) if steps else 1e-2


__all__ = ["CONSTANTS", "MEANINGS", "ChipFit", "Constant", "Errors", "Impossible", "fit_chip"]
