"""What a roofline says in words: its message, what was asked, and what is not on the chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from simulator.deployment import Deployment, Workload
from simulator.plots.roofline_data import PHASES, Roof, roofs
from simulator.plots.style import Theme, asked, count
from simulator.units import format_number

_WORTH = 0.01       # share of a decode step from which what is not drawn is said
_UNDRAWN = {"host": "host time", "network": "collectives"}


class Words:
    """The data of one drawing, complete before anything is drawn, and what it says."""

    def __init__(self, chips: Sequence[Deployment], names: Sequence[str], w: Workload,
                 data: pd.DataFrame, theme: Theme) -> None:
        self.chips, self.names, self.w, self.data, self.theme = chips, names, w, data, theme
        self.roofs = {n: roofs(d) for d, n in zip(chips, names, strict=True)}
        self.several = len(chips) > 1
        self.paths = data[data["series"].str.endswith("path") & data["drawn"]]
        self.points = data[(data["series"] == "operation") & data["drawn"]]
        self.colors = dict(zip(names, theme.roofs, strict=False))

    def main(self, name: str) -> Roof:
        """The roof that the model works under."""
        return self.roofs[name][0]

    def phase(self, name: str, phase: str) -> Any:
        """The row of a whole pass, or None."""
        found = self.data[(self.data["series"] == "pass") & (self.data["device"] == name)
                          & (self.data["phase"] == phase)]
        return found.iloc[0] if len(found) else None

    def message(self) -> str:
        """What the picture says, from the data."""
        sides = [{p: self.phase(n, p)["intensity_flop_per_byte"] / self.main(n).ridge
                  for p in PHASES if self.phase(n, p) is not None} for n in self.names]
        good = self.data[(self.data["series"] == "pass") & self.data["fits"].eq(True)]["device"]
        sides = [s for s, n in zip(sides, self.names, strict=True)
                 if n in set(good)] or sides    # a headline is about devices that hold the model
        right, left = [s["prefill"] for s in sides], [1 / s["decode"] for s in sides
                                                      if "decode" in s]
        if not self.data[self.data["series"] == "pass"]["fits"].any():
            return "It does not fit; if it did, it would sit here"
        if not left:
            return "Prefill sits right of the ridge" if min(right) > 1 else (
                "Prefill sits left of the ridge")
        moved = self._path_message() if len(self.paths) and not self.several else None
        if moved is not None:
            return moved
        if min(right) > 1 and min(left) > 1:
            far = (f"{format_number(min(left), 2)}x" if min(left) == max(left) else
                   f"{format_number(min(left), 2)} to {format_number(max(left), 2)}x")
            return f"Prefill sits right of the ridge, decode {far} left of it"
        if max(right) < 1 and min(left) > 1:
            return "Both phases sit left of the ridge: bytes decide"
        if min(right) > 1 and max(left) < 1:
            return "Both phases sit right of the ridge: FLOP/s decide"
        return "Where the ridge lies decides which phase is bound by bytes"

    def _path_message(self) -> str | None:
        """What a trajectory shows, where it shows it."""
        own, ridge = self.paths[self.paths["phase"] == "decode"], self.main(self.names[0]).ridge
        batch, context = (own[(own["series"] == f"{along} path") & (own["group"] == group)][
            "intensity_flop_per_byte"].to_numpy() / ridge
            for along, group in (("batch", "matrices"), ("context", "pass")))
        if len(batch) and batch[-1] > 0.5 > batch[0]:
            return "Batch takes decode's matrices to the ridge, not its attention"
        if len(context) and context[-1] < 0.7 * context[0]:
            return "A longer context pulls decode back down the slope"
        return None

    def subtitle(self) -> str:
        """Model, workload, formats, what does not fit and what is not drawn."""
        batch = self._along("batch path", "batch", float(self.w.batch))
        prompt = self._along("context path", "input", float(self.w.input))
        text = asked(self.chips[0], self.several, batch=f"batch {batch}",
                     tokens=f"{prompt} tokens in, {self.w.output:,.0f} out")
        base = self.data[self.data["series"] == "pass"]
        bad = [n for n in self.names if not base[base["device"] == n]["fits"].all()]
        if bad:
            text += f". DOES\u00a0NOT\u00a0FIT{self._where(bad)}: hollow markers"
        if self.several:
            text += ". One precision drawn of each device"
        return text + self._undrawn()

    def _along(self, series: str, column: str, single: float) -> str:
        """The one value, or both ends of a trajectory."""
        values = self.paths[self.paths["series"] == series][column]
        if values.empty:
            return f"{single:,.0f}"
        return f"{count(values.min())} to {count(values.max())}"

    def _undrawn(self) -> str:
        """The share of a decode step that has no place on the axes."""
        rows = self.data[(self.data["series"] == "operation") & ~self.data["drawn"]
                         & (self.data["phase"] == "decode")]
        shares = rows.groupby("device")["share"].sum().reindex(list(self.names), fill_value=0.0)
        if rows.empty or shares.max() < _WORTH:
            return ""
        parts = rows.groupby("group")["share"].sum().sort_values(ascending=False)
        named = [_UNDRAWN.get(str(g), str(g)) for g, v in parts.items() if v > 0.1 * parts.sum()]
        low, high = f"{shares.min():.0%}", f"{shares.max():.0%}"
        share = high if low == high else f"{low[:-1]} to {high}"
        return f". {share} of the decode step is {' and '.join(named)}: not on the chart"

    def _where(self, bad: Sequence[str]) -> str:
        return f" on {', '.join(bad)}" if self.several else ""

