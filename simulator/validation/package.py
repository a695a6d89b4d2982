"""Make the packaged measurements: `python -m simulator.validation.package FILE... [--out FILE]`.

Rows of quality A and B that can be predicted and that no constant was fitted on, so that scoring
them is a test. Which are taken depends on the conditions alone, never on the error: of each source,
phase and deployment as many as let no source dominate, spread over batches and lengths.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from simulator.errors import InputError
from simulator.validation.cases import Case, case_of, cases_of
from simulator.validation.measurements import Row, read_rows, write_rows
from simulator.validation.names import hardware_of, model_of, protocol_of
from simulator.validation.predict import predict
from simulator.validation.report import columns_of
from simulator.validation.run import PACKAGED
from simulator.validation.split import fitted_groups

MOST = 2600
LEAST = {"rows": 1500, "sources": 12, "devices": 25, "models": 20}
NOTES = 120
# Parts of a note that a prediction rests on, or that warn; they come first.
_DECIDE = re.compile(r"model_bytes=|threads=|WARNING|\bMTP|specul|\bspec\b", re.I)
# Parts that say where a figure stood or how it was worked out.
_ORIGIN = re.compile(r"^id=|^rev |^fa=|\.(csv|md|html|py)\b|README|latency_s=|L\*bs|^derived|^=|"
                     r"also printed|^Fig|post$|blog|transcribed|^section |end-to-end latency|"
                     r"db-dump|check definition", re.I)


def conditions(notes: str) -> str:
    """What of a note conditions the figure, in whole parts of at most NOTES characters."""
    parts = [p.strip() for p in notes.split(";") if p.strip()]
    deciding = [p for p in parts if _DECIDE.search(p) or protocol_of(p)[0] is not None]
    others = [p for p in parts if p not in deciding and not _ORIGIN.search(p)]
    found = ""
    for part in dict.fromkeys([*deciding, *others]):
        longer = f"{found}; {part}" if found else part
        if len(longer) <= NOTES:
            found = longer
    return found


def _order(case: Case) -> tuple[float, float, float, str, str, float]:
    batch = math.inf if case.batch is None else case.batch
    return batch, case.input, case.output, case.row.metric, case.row.id, case.row.value


def _some(cases: Sequence[Case], most: int) -> list[Case]:
    """At most `most` of the cases, evenly spread over their order."""
    ordered = sorted(cases, key=_order)
    if len(ordered) <= most:
        return ordered
    step = (len(ordered) - 1) / max(most - 1, 1)
    return [ordered[round(i * step)] for i in range(most)]


def candidates(rows: list[Row]) -> list[Case]:
    """Cases of quality A and B with a finite prediction that no constant was fitted on."""
    known = fitted_groups()
    cases = [c for c in cases_of(rows)[0] if c.row.quality != "C" and c.row.group not in known]
    found = predict(cases).expected
    return [c for c, value in zip(cases, found, strict=True) if math.isfinite(value) and value > 0]


def chosen(cases: Sequence[Case], most: int = MOST) -> list[Row]:
    """Rows to package: as many of each source, phase and deployment as stay below `most` in all."""
    groups: dict[tuple[str, str, object], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.row.source, case.phase, case.setup].append(case)
    cap = 1
    while cap < len(cases) and sum(min(len(g), cap + 1) for g in groups.values()) <= most:
        cap += 1
    taken = [c for g in groups.values() for c in _some(g, cap)]
    taken.sort(key=lambda c: (c.row.source, c.phase, c.row.hardware, c.row.model, c.row.engine,
                              c.row.weights, *_order(c)))
    return [_shortened(c) for c in taken]


def _shortened(case: Case) -> Row:
    """The row with its note cut; refused where that would change what is predicted."""
    row = replace(case.row, notes=conditions(case.row.notes))
    again = case_of(case.index, row)
    if replace(again, row=case.row, assumed=case.assumed) != case:
        raise InputError(f"row {row.id}: its note can't be cut without changing the prediction")
    return row


def counted(rows: Sequence[Row]) -> dict[str, int]:
    """Rows, sources, devices and models."""
    return {"rows": len(rows), "sources": len({r.source for r in rows}),
            "devices": len({hardware_of(r.hardware).name for r in rows}),
            "models": len({model_of(r.model)[0].name for r in rows})}


def package(files: Sequence[str], out: str) -> dict[str, int]:
    """Write the packaged measurements; what they hold."""
    rows = chosen(candidates([row for path in files for row in read_rows(path)]))
    found = counted(rows)
    for what, least in LEAST.items():
        if found[what] < least:
            raise InputError(f"{found[what]:,} {what} to package, at least {least:,} are needed")
    try:
        write_rows(out, [columns_of(row) for row in rows])
    except OSError as error:
        raise InputError(f"--out: '{out}' can't be written: {error.strerror}") from None
    return found


def main(args: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulator.validation.package",
                                     description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", default=str(PACKAGED), metavar="FILE")
    asked = parser.parse_args(args)
    try:
        found = package(asked.files, asked.out)
    except InputError as error:
        print(f"package: {error}", file=sys.stderr)
        return 2
    print(f"{asked.out}: " + ", ".join(f"{n:,} {what}" for what, n in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
