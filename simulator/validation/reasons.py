"""Why a prediction may be far off: facts of the row and of the deployment, never a guess."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.efficiency import far_outside
from simulator.efficiency.levels import level_of
from simulator.network import link_domain
from simulator.specs.engine import load_engine
from simulator.validation import names
from simulator.validation.measurements import RATES
from simulator.validation.predict import batches, setup_arrays
from simulator.validation.scores import Scored

# A figure this far beyond the ceiling is more than rounding of either.
_BEYOND = 1.02


def reason(scored: Scored) -> str:
    """The facts that make a row hard to predict, the strongest first; empty where none is known."""
    return "; ".join(_facts(scored))


def beats_ceiling(scored: Scored) -> bool:
    """Whether the measured figure is better than what the printed conditions allow at most."""
    row = scored.case.row
    if row.metric in RATES:
        return row.value > scored.ceiling * _BEYOND
    return row.value * _BEYOND < scored.ceiling


def _facts(scored: Scored) -> Iterator[str]:
    case, row = scored.case, scored.case.row
    setup, engine = case.setup, load_engine(case.setup.engine)
    hardware = names.hardware_of(setup.hardware)
    flight = _flight(scored)
    queued = case.batch is not None and flight < case.batch
    if queued and flight == (engine.max_sequences or 0) * setup.dp:
        yield (f"the profile of the engine takes {flight:,.0f} of the {case.batch:,.0f} sequences "
               "at once, so the queue decides")
    elif queued:
        yield (f"{flight:,.0f} of the {case.batch:,.0f} sequences fit by this count of memory, so "
               "the queue decides")
    # With a queue the ceiling rests on the count of memory, and isn't physics alone.
    if case.phase != "memory" and not queued and beats_ceiling(scored):
        yield ("the measured figure beats the ceiling, so the printed conditions aren't all "
               "(speculation, another format, another batch?)")
    if "WARNING" in row.notes:
        yield "the source's note: " + row.notes[row.notes.index("WARNING"):].split(";")[0].strip()
    if engine.async_host:
        yield "an eager engine, so the host's CPU decides, which isn't printed"
    if far_outside(setup.engine, hardware.name) > 1.0:
        yield "what else was measured on this device lies as far from other devices of its kind"
    level = level_of(hardware)
    if level.known == "none":
        yield f"nothing like the {hardware.name} was fitted"
    elif level.known != "device":
        yield f"no row of the {hardware.name} was fitted, its {level.known} ({level.of}) alone"
    if setup.dp > 1:
        yield f"attention is data-parallel ({setup.dp} ranks), whose balance isn't printed"
    domain = link_domain(hardware)
    if domain is not None and 1 < domain < setup.devices:
        yield f"{setup.devices:,.0f} devices are several nodes, whose network isn't printed"
    if case.figure == "ttft_served" and not row.rate:
        yield "how the requests arrive, all at once or spread, isn't printed"
    if case.assumed:
        yield case.assumed


def _flight(scored: Scored) -> float:
    """Sequences that are in the batch at once."""
    flight, _ = batches(scored.case.setup.deployment(), *setup_arrays([scored.case]))
    return float(np.ravel(flight)[0])


__all__ = ["beats_ceiling", "reason"]
