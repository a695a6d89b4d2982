"""Constants of engines and devices from measured rows, and what they are worth on other rows.

`python -m simulator.validation.fit FILE... [--half 0|1] [--write]` fits on one half of the groups
of (source, device, model), scores the other half, and with `--write` puts the constants into the
engine profiles and `efficiency/levels.yaml`. Few constants, each with a meaning and a prior: an
engine with few rows stays near what engines of its kind do, a device near its class of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError
from simulator.specs.engine import load_engine
from simulator.validation import names
from simulator.validation.cases import APART, OTHER_PHASES, Case, cases_of
from simulator.validation.fit_report import known_levels
from simulator.validation.measurements import read_rows
from simulator.validation.parts import BARE, Constants, Parts, parts_of
from simulator.validation.predict import Serving, figures
from simulator.validation.split import copies, halves, range_groups

# (centre, spread of its logarithm) of each constant of an engine.
ENGINE_PRIORS: dict[str, tuple[float, float]] = {
    "compute_scale": (1.0, 0.3), "memory_scale": (1.0, 0.1), "launch_scale": (1.0, 0.3),
    "prefill_launch_scale": (2.0, 0.5),
    "host_time": (0.5e-3, 1.0), "layer_time": (8e-6, 1.2), "sequence_time": (3e-6, 1.0),
    "request_time": (1e-3, 1.0), "queue_steps": (3.0, 0.7), "burst": (0.07, 0.5),
    "interference": (1.0, 0.15), "fill": (0.9, 0.1),
}
# Spread of the scale on prefill's arithmetic of an engine that isn't fused: what its products are
# made of is its own, and says nothing of the device.
UNFUSED_COMPUTE = 1.0
# Servers answer over HTTP, after their queue.
SERVER_REQUEST_TIME = 20e-3
# Engines whose host launches every kernel, or every step of an unfused layer: its time a layer.
EAGER_LAYER_TIME = 400e-6
# Spreads for an engine whose prefill alone is eager: its decode is CUDA graphs of the kernels that
# others launch too and waits for no host, and its server answers as others do. What its TTFT has
# beyond that is of prefill and of the queue.
OF_GRAPHS = {"launch_scale": 0.05, "memory_scale": 0.03, "layer_time": 0.3, "host_time": 0.5,
             "request_time": 0.3}
# Spread of the logarithm of a level: of a class of memory and of a vendor's class, of an
# architecture and of a device among its like. The kernels of NVIDIA's HBM parts were timed one by
# one, so theirs is near one.
LEVEL_SPREADS = {"memory": {"vendor": 0.2, "architecture": 0.12, "device": 0.12},
                 "compute": {"vendor": 0.25, "architecture": 0.2, "device": 0.2}}
TIMED = "nvidia hbm"
TIMED_SPREAD = {"memory": 0.03, "compute": 0.05}
# Collectives over NVLink were timed as well; what a machine's PCIe does depends on its board.
LINK_SPREAD, TIMED_LINK_SPREAD = 0.25, 0.08
# |ln error| above which a row counts less and less.
ROBUST = 0.15
# How much the rows weigh against the priors.
TRUST = 3.0
FEWEST_ROWS = 20
ROUNDS = 3
# Versions that differ in how a decode step is launched have the prefill of their successors.
SAME_PREFILL = {"tt-metal-0.51": "tt-metal"}
OF_PREFILL = ("compute_scale", "request_time")


class _Problem:
    """Positions of the unknowns in one vector, and the residuals.

    The unknowns are logarithms of constants; `at` are those that the parts were taken at.
    """

    def __init__(self, parts: Parts, weights: Array, at: Array | None = None) -> None:
        self.parts, self.weights = parts, weights
        self.labels: dict[str, Array] = {}
        self.rows: dict[str, Array] = {}
        names_of = {kind: getattr(parts, kind)
                    for kind in ("engine", "device", "architecture", "vendor", "link")}
        names_of["prefill"] = np.array([SAME_PREFILL.get(str(e), str(e)) for e in parts.engine])
        for kind, found in names_of.items():
            self.labels[kind], self.rows[kind] = np.unique(found, return_inverse=True)
        self.blocks: dict[str, tuple[slice, Array]] = {}
        centres: list[Array] = []
        spreads: list[Array] = []
        start = 0
        for name, kind, centre, spread in self._unknowns():
            self.blocks[name] = slice(start, start + len(centre)), self.rows[kind]
            start += len(centre)
            centres.append(centre)
            spreads.append(spread)
        self.centre, self.spread = np.concatenate(centres), np.concatenate(spreads)
        self.at = np.zeros_like(self.centre) if at is None else at

    def _unknowns(self) -> list[tuple[str, str, Array, Array]]:
        found = []
        for name, (centre, spread) in ENGINE_PRIORS.items():
            kind = "prefill" if name in OF_PREFILL else "engine"
            profiles = [load_engine(str(label)) for label in self.labels[kind]]
            centres = np.full(len(profiles), centre)
            if name == "layer_time":
                centres = np.where([e.async_host or not e.fused for e in profiles],
                                   EAGER_LAYER_TIME, centres)
            if name == "request_time":
                centres = np.where([e.continuous for e in profiles], SERVER_REQUEST_TIME, centres)
            spreads = np.full(len(profiles), spread)
            eager = np.array([e.prefill_launch_scale != 1.0 for e in profiles])
            if name == "prefill_launch_scale":    # of the engines that say so alone
                centres, spreads = np.where(eager, centres, 1.0), np.where(eager, spreads, 1e-6)
            if name == "compute_scale":
                spreads = np.where([e.fused for e in profiles], spreads, UNFUSED_COMPUTE)
            if name in OF_GRAPHS:    # the rest of such an engine is graphs of common kernels
                spreads = np.where(eager, OF_GRAPHS[name], spreads)
            found.append((name, kind, np.log(centres), spreads))
        for part, kinds in LEVEL_SPREADS.items():
            for kind, spread in kinds.items():
                labels = self.labels[kind]
                timed = np.isin(labels, np.unique(getattr(self.parts, kind)[
                    self.parts.vendor == TIMED]))
                wide = np.where(timed, TIMED_SPREAD[part], spread)
                found.append((f"{kind}_{part}", kind, np.zeros(len(labels)), wide))
        links = self.labels["link"]
        found.append(("link", "link", np.zeros(len(links)), np.where(
            np.char.startswith(links.astype(str), "nvlink"), TIMED_LINK_SPREAD, LINK_SPREAD)))
        return found

    def row(self, x: Array, name: str) -> Array:
        """A constant of each row."""
        block, where = self.blocks[name]
        return np.exp(x[block])[where]

    def level(self, x: Array, part: str) -> Array:
        """Level of each row's device: its vendor's class, its architecture, itself."""
        product: Array = 1.0
        for kind in LEVEL_SPREADS[part]:
            product = product * self.row(x, f"{kind}_{part}")
        return product

    def predicted(self, x: Array) -> Array:
        p, moved = self.parts, x - self.at
        host = self.row(x, "host_time") + p.layers * self.row(x, "layer_time")
        factors = (self.row(moved, "compute_scale") * self.level(moved, "compute"),
                   self.row(moved, "memory_scale") * self.level(moved, "memory"),
                   self.row(moved, "launch_scale"), self.row(moved, "link"))
        serving = Serving(*(self.row(x, name) for name in (
            "request_time", "queue_steps", "burst", "interference", "fill"))).in_rounds(p.rounds)
        terms = p.terms(factors, self.level(moved, "compute"), (host, self.row(x, "sequence_time")),
                        self.row(moved, "prefill_launch_scale"))
        return figures(terms, serving, p.figure, p.full)

    def residuals(self, x: Array) -> Array:
        error = np.log(self.predicted(x) / self.parts.value)
        soft = np.sign(error) * np.sqrt(2.0 * (np.sqrt(1.0 + (error / ROBUST) ** 2) - 1.0))
        return np.concatenate([TRUST * self.weights * soft, (x - self.centre) / self.spread])

    def pattern(self) -> Any:
        """Which residual depends on which unknown, so that few differences give all slopes."""
        from scipy.sparse import coo_matrix

        n, m = len(self.parts.value), len(self.centre)
        rows = [np.arange(n)] * len(self.blocks) + [n + np.arange(m)]
        columns = [block.start + where for block, where in self.blocks.values()] + [np.arange(m)]
        i, j = np.concatenate(rows), np.concatenate(columns)
        return coo_matrix((np.ones(len(i)), (i, j)), shape=(n + m, m))

    def solved(self) -> Array:
        """The unknowns at the least squares."""
        from scipy.optimize import least_squares

        return least_squares(self.residuals, self.centre, jac_sparsity=self.pattern(),
                             x_scale=self.spread, max_nfev=200).x

    def constants(self, x: Array) -> Constants:
        """The unknowns by name; a level of a device is the product of its like's and its own."""
        first = [int(np.argmax(self.rows["engine"] == i))
                 for i in range(len(self.labels["engine"]))]
        engines = {name: dict(zip(map(str, self.labels["engine"]),
                                  map(float, self.row(x, name)[first]), strict=True))
                   for name in ENGINE_PRIORS}
        found: dict[str, dict[str, dict[str, float]]] = {}
        shared: dict[str, Array] = dict.fromkeys(LEVEL_SPREADS, 1.0)
        for kind in ("vendor", "architecture", "device"):
            for part in LEVEL_SPREADS:
                shared[part] = shared[part] * self.row(x, f"{kind}_{part}")
            first = [int(np.argmax(self.rows[kind] == i)) for i in range(len(self.labels[kind]))]
            found[kind] = {str(name): {part: float(shared[part][i]) for part in LEVEL_SPREADS}
                           for name, i in zip(self.labels[kind], first, strict=True)}
        links = dict(zip(map(str, self.labels["link"]),
                         map(float, np.exp(x[self.blocks["link"][0]])), strict=True))
        return Constants(engines, found, links)


def row_weights(cases: Sequence[Case], mine: Array) -> Array:
    """Weight of each row, 0 outside `mine`: a source's rows of a phase count as n^0.3, not as n."""
    keys = [(c.row.source, c.phase) for c in cases]
    counts: dict[tuple[str, str], int] = {}
    for key, use in zip(keys, mine, strict=True):
        counts[key] = counts.get(key, 0) + bool(use)
    return np.array([counts[k] ** -0.35 if use else 0.0
                     for k, use in zip(keys, mine, strict=True)])


def usable(case: Case) -> bool:
    """Rows of quality A and B that measure time."""
    return case.row.quality != "C" and case.phase != "memory"


def told(case: Case) -> bool:
    """Whether a row tells what decides it: not one that may have drafted tokens and doesn't say,
    nor one whose way of sharing the attention had to be inferred.

    Such rows are scored like all others, but no constant is fitted on them.
    """
    silent = "spec status not given" in case.row.notes
    drafts = silent and case.phase == "tpot" and names.model_of(case.row.model)[0].mtp
    return APART not in case.assumed and not drafts


def fit(cases: Sequence[Case], mine: Array, parts: Parts | None = None
        ) -> tuple[Constants, Array]:
    """(constants fitted on the rows `mine`, predictions of all rows)."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError("fitting needs scipy: pip install 'tokline[fit]'") from None
    if int(np.sum(mine)) < FEWEST_ROWS:
        raise InputError(f"{int(np.sum(mine))} rows are too few to fit constants on "
                         f"(at least {FEWEST_ROWS})")
    weights = row_weights(cases, mine)
    problem = _Problem(parts_of(cases) if parts is None else parts, weights)
    x = problem.solved()
    for _ in range(ROUNDS - 1):
        problem = _Problem(parts_of(cases, problem.constants(x)), weights, x)
        x = problem.solved()
    return problem.constants(x), problem.predicted(x)


def crossed(cases: Sequence[Case], used: Array, part: Array, parts: Parts, own: Array,
            ranged: Array) -> tuple[Array, Array]:
    """(errors, how well each device is known) of rows by constants of the other `part`.

    Of both halves of the rows `used`, by `part`; what the ranges rest on beside the groups that
    nothing was fitted on, since few sources have many of those. Constants of half as many rows miss
    by more than those of all, whose errors are `own`: by how much, the rows `ranged` tell, on which
    neither was fitted, phase by phase.
    """
    found = {side: np.log(fit(cases, used & (part == side), parts)[1] / parts.value)
             for side in (False, True)}
    known = {side: known_levels(parts, used & (part == side)) for side in (False, True)}
    error = np.where(part, found[False], found[True])
    phases = np.array([c.phase for c in cases])
    for phase in np.unique(phases):
        rows = ranged & (phases == phase)
        if np.sum(rows) >= FEWEST_ROWS:
            more = np.median(np.abs([found[False][rows], found[True][rows]]))
            error[phases == phase] *= min(float(np.median(np.abs(own[rows])) / more), 1.0)
    return error, np.where(part, known[False], known[True])


def one_factor(cases: Sequence[Case], parts: Parts, mine: Array) -> Array:
    """Predictions of ceilings divided by one efficiency a phase, the best for the rows `mine`."""
    bound = figures(parts.ceilings(), BARE, parts.figure, parts.full)
    error = np.log(bound / parts.value)
    phases = np.array([c.phase for c in cases])
    for phase in np.unique(phases):
        rows = phases == phase
        if np.any(rows & mine):
            bound[rows] *= np.exp(-np.median(error[rows & mine] * _sign(parts, rows & mine))
                                  * _sign(parts, rows))
    return bound


def _sign(parts: Parts, rows: Array) -> Array:
    """-1 for times, 1 for rates: an efficiency below one lowers the one and raises the other."""
    return np.where(np.char.endswith(parts.figure[rows].astype(str), "ms")
                    | (parts.figure[rows] == "tpot_served")
                    | (parts.figure[rows] == "ttft_served"), -1.0, 1.0)


def read_cases(files: Sequence[str]) -> tuple[list[Case], dict[tuple[str, str, str], int]]:
    """(usable cases of all files, half of each group)."""
    rows = [row for file in files for row in read_rows(file)]
    cases, _ = cases_of(rows)
    return [c for c in cases if usable(c) and c.phase not in ("memory",)], halves(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the module."""
    import argparse

    from simulator.validation.fit_report import table, write_all

    parser = argparse.ArgumentParser(prog="python -m simulator.validation.fit",
                                     description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--half", type=int, choices=(0, 1), default=0,
                        help="half of the groups to fit on; the other is scored")
    parser.add_argument("--write", action="store_true", help="keep the constants")
    asked = parser.parse_args(arguments)
    try:
        cases, half = read_cases(asked.files)
        parts = parts_of(cases)
        mine = np.array([half[c.row.group] == asked.half for c in cases])
        used = mine & np.array([told(c) for c in cases])
        constants, predicted = fit(cases, used, parts)
        others = {"ceiling": figures(parts.ceilings(), BARE, parts.figure, parts.full),
                  "one factor": one_factor(cases, parts, used), "tokline": predicted}
        print(table(cases, others, ~mine))
        if asked.write:
            own, alike = np.log(predicted / parts.value), copies(c.row for c in cases)
            part, ranged = (np.array([c.row.group in groups for c in cases]) for groups in (
                range_groups(half, side, alike) for side in (1 - asked.half, asked.half)))
            again, known = crossed(cases, used, part, parts, own, ranged)
            write_all(constants, cases, parts, own, np.where(mine, again, own),
                      np.where(mine, known, known_levels(parts, used)), used, half, asked.half)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


__all__ = ["ENGINE_PRIORS", "OTHER_PHASES", "Constants", "fit", "one_factor", "read_cases",
           "row_weights", "usable"]

if __name__ == "__main__":
    sys.exit(main())
