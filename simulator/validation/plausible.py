"""Rows that measure another thing than what is predicted: tails, and sizes that nobody can run."""

from __future__ import annotations

import math

from simulator.deployment import Deployment
from simulator.memory import memory
from simulator.specs.model import Model
from simulator.validation.measurements import METRICS, RATES, SIZES, TIMES, Row
from simulator.validation.names import UnknownError
from simulator.validation.percentiles import percentile_of

# Devices of one deployment, sequences a device at once, and the context in positions of the model,
# which scaled rotations stretch 32 times at most: beyond these no row is a measurement.
MOST_DEVICES, MOST_SEQUENCES, STRETCHED = 10_000, 65_536, 32
# Contexts from which the cache of one sequence may exceed a device.
LONG = 32_768
# Nothing that the printed conditions leave out, drafted tokens or a narrower format, is worth as
# much.
IMPOSSIBLE = 30.0


def check_metric(row: Row) -> None:
    """Refuse metrics without a prediction, and percentiles other than the median."""
    tail = None
    if row.metric not in METRICS:
        tail = percentile_of(row.metric.replace("_", " "))
        if tail is None:
            raise UnknownError(f"metric without a prediction: {row.metric}")
    elif row.metric in TIMES or row.metric == "decode_tok_s_per_user":
        tail = percentile_of(row.notes, row.value)
    if tail is not None:
        raise UnknownError(f"a percentile ({tail}), predictions are means")


def check_degrees(row: Row) -> None:
    """Refuse numbers of devices that no deployment has."""
    if row.n_devices == 0:
        raise UnknownError("no devices")
    for what, degree in (("n_devices", row.n_devices), ("tp", row.tp), ("pp", row.pp)):
        if degree is not None and not 1 <= degree <= MOST_DEVICES:
            raise UnknownError(f"{what} {degree:,}: between 1 and {MOST_DEVICES:,} make sense")


def check_size(row: Row, devices: float, model: Model, batch: float | None, prompt: float,
               output: float) -> None:
    """Refuse batches and lengths that nobody can have run on `devices`."""
    if batch is not None and batch > MOST_SEQUENCES * devices:
        raise UnknownError(f"{batch:,.0f} sequences at once are more than {MOST_SEQUENCES:,} "
                           "a device")
    if prompt + output > STRETCHED * model.positions:
        raise UnknownError(f"{prompt + output:,.0f} tokens are more than {STRETCHED} times the "
                           f"{model.positions:,} positions of the model")
    prefill = row.metric in ("prefill_ms", "prefill_tok_s", "ttft_ms")
    if prompt < 1 and (prefill or prompt > 0):
        raise UnknownError(f"a prompt of {prompt:g} tokens")
    if output < 1 and not prefill and row.metric not in SIZES:
        raise UnknownError(f"an output of {output:g} tokens")


def check_cache(d: Deployment, context: float) -> None:
    """Refuse a context of which no sequence fits beside the weights."""
    if context > LONG:
        m = memory(d, 1.0, context, 0.0)
        if float(m.weights + m.kv_ideal) > float(m.capacity):
            raise UnknownError(f"the cache of one sequence of {context:,.0f} tokens exceeds the "
                               "memory of the devices stated")


def unlike(row: Row, value: float, bound: float) -> str:
    """Why the prediction `value`, at most `bound`, says nothing of its row; empty where it does."""
    if not (math.isfinite(value) and value > 0):
        return ("no room for a KV cache by this count of memory"
                if row.metric == "kv_tokens_capacity" else "nothing to predict at these conditions")
    beyond = (row.value / bound if row.metric in RATES else
              bound / row.value if row.metric in TIMES else 1.0)
    if beyond > IMPOSSIBLE:
        return f"better than physics allows by more than {IMPOSSIBLE:.0f} times: another unit?"
    return ""


__all__ = ["check_cache", "check_degrees", "check_metric", "check_size", "unlike"]
