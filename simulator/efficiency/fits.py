"""Constants of the kernel forms from tables of timings: least squares on log residuals.

A table has the columns of the timing files (a DataFrame or a dict of arrays). The loss is soft L1,
so that a few calls on another code path don't pull the rest. e, h <= 0.95 and g <= h throughout:
no kernel measured moves or computes faster than that from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from simulator.arrays import Array
from simulator.efficiency import FRACTION_CAP, forms, forms_moe
from simulator.efficiency.constants import (
    FAMILIES,
    TIMES,
    Chain,
    Constants,
    Experts,
    Lines,
    Pass,
    Split,
)
from simulator.efficiency.kernel_formats import kernel_format, kv_bytes, peak
from simulator.errors import InputError
from simulator.specs.hardware import Hardware

# A DataFrame, or a dict of arrays.
Table: TypeAlias = Any
Inputs: TypeAlias = dict[str, Array]

MIN_ROWS = 12
# Rows above which a fit gains nothing but time; spread evenly over the table.
ENOUGH_ROWS = 1500
# Relative miss at which the loss turns from square to linear.
SOFT = 0.1
# Weight of a row that a replay found in the cache, against 1 for one from memory.
LEAST_WEIGHT = 0.2


class Form(NamedTuple):
    """inputs: arrays of a table that the form needs; time: the form itself on those; start, low
    and high of each constant (times in us); fixed: constants that aren't fitted."""

    inputs: Callable[[Table, Hardware, str], Inputs]
    time: Callable[[Inputs, Any], Array]
    bounds: dict[str, tuple[float, float, float]]
    fixed: dict[str, float]


def _column(table: Table, name: str, default: float | None = None) -> Array:
    if name not in table:
        if default is None:
            raise InputError(f"timings: column '{name}' is missing")
        return np.full(len(table["time_us"]), default)
    values = np.asarray(table[name], dtype=float)
    return values if default is None else np.where(np.isnan(values), default, values)


def _device(hardware: Hardware, compute: str) -> Inputs:
    if hardware.units is None:
        raise InputError(f"hardware '{hardware.name}': kernel forms need 'units'")
    return {"P": peak(hardware, compute), "W": hardware.memory_bandwidth, "S": hardware.units}


def _cold(B: Array, hardware: Hardware) -> Array:
    cache = hardware.cache_capacity
    return np.ones(np.shape(B)) if cache is None else forms.cold_share(B, cache)


def _gemm_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    f = kernel_format(format)
    m, n, k = (_column(table, x) for x in "mnk")
    copies = _column(table, "weight_copies", 1e9)
    own = _column(table, "quantises", 0.0)
    a = f.activation
    footprint = copies * n * k * f.weight + m * (k * a + 2.0 * n)
    return {"m": m, "n": n, "k": k, "B": forms.gemm_bytes(m, n, k, f.weight, a),
            "r": _cold(footprint, hardware), "a": a, "own": own,
            **_device(hardware, f.compute)}


def _gemm_time(x: Inputs, c: Any) -> Array:
    q = x["own"] * forms.quantise_term(x["m"], x["k"], x["a"], c.h, x["W"])
    return forms.gemm_time(x["m"], x["n"], x["k"], x["B"], c, x["P"], x["W"], x["S"], x["r"], q)


def _prefill_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    b, q, L = (_column(table, x) for x in ("batch", "q_len", "kv_len"))
    h, K, d = (_column(table, x) for x in ("n_heads", "n_kv_heads", "head_dim"))
    window = _column(table, "window", 0.0)
    B = forms.prefill_bytes(b, h, K, q, L, d, d, kv_bytes(format))
    return {"b": b, "h": h, "q": q, "L": L, "dk": d, "dv": d, "B": B,
            "window": np.where(window > 0, window, 1e12),
            "r": _cold(B, hardware),
            **_device(hardware, kernel_format(format).compute)}


def _mla_prefill_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    b, q, L, h = (_column(table, x) for x in ("batch", "q_len", "kv_len", "n_heads"))
    dk, dv = forms.MLA_KEY, forms.MLA_VALUE
    B = forms.prefill_bytes(b, h, h, q, L, dk, dv, kv_bytes(format))
    return {"b": b, "h": h, "q": q, "L": L, "dk": dk, "dv": dv, "B": B, "window": 1e12,
            "r": _cold(B, hardware),
            **_device(hardware, kernel_format(format).compute)}


def _prefill_time(x: Inputs, c: Any) -> Array:
    return forms.prefill_time(x["b"], x["h"], x["q"], x["L"], x["dk"], x["dv"], x["B"], c, x["P"],
                              x["W"], x["S"], x["r"], x["window"])


def _decode_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    b, L = _column(table, "batch"), _column(table, "kv_len")
    h, K, d = (_column(table, x) for x in ("n_heads", "n_kv_heads", "head_dim"))
    kv = kv_bytes(format)
    B = forms.decode_bytes(b, h, K, L, d, kv)
    return {"b": b, "h": h, "K": K, "L": L, "d": d, "kv": kv,
            "r": _cold(B, hardware),
            **_device(hardware, kernel_format(format).compute)}


def _decode_time(x: Inputs, c: Any) -> Array:
    return forms.decode_time(x["b"], x["h"], x["K"], x["L"], x["d"], x["kv"], c, x["P"], x["W"],
                             x["S"], x["r"])


def _mla_decode_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    b, L, h = (_column(table, x) for x in ("batch", "kv_len", "n_heads"))
    kv = kv_bytes(format)
    B = forms.mla_decode_bytes(b, h, L, kv)
    return {"b": b, "h": h, "L": L, "kv": kv, "r": _cold(B, hardware),
            **_device(hardware, kernel_format(format).compute)}


def _mla_decode_time(x: Inputs, c: Any) -> Array:
    return forms.mla_decode_time(x["b"], x["h"], x["L"], x["kv"], c, x["P"], x["W"], x["S"],
                                 x["r"])


def _moe_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    f = kernel_format(format)
    m, H, E, topk = (_column(table, x) for x in ("m", "k", "n_experts", "topk"))
    inner = _column(table, "n") / _column(table, "tp", 1.0)
    local, gates = E / _column(table, "ep", 1.0), _column(table, "gates", 2.0)
    rows, active = _column(table, "rows"), _column(table, "active")
    B = forms_moe.experts_bytes(active, H, inner, gates, f.weight)
    return {"m": m, "topk": topk, "rows": rows, "active": active, "H": H, "inner": inner,
            "local": local, "gates": gates, "weight": f.weight,
            **{f"T{t:.0f}": _column(table, f"tiles_{t:.0f}") for t in forms_moe.TILE_ROWS},
            "r": _cold(B, hardware), **_device(hardware, f.compute)}


def _moe_time(x: Inputs, c: Any) -> Array:
    return forms_moe.moe_time(x["m"], x["topk"], x["rows"], x["active"],
                              (x["T16"], x["T64"], x["T128"]), x["H"], x["inner"], x["local"],
                              x["weight"], c, x["P"], x["W"], x["S"], x["r"], x["gates"])


def _elementwise_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    B = _column(table, "bytes")
    return {"B": B, "r": _cold(B, hardware),
            "W": hardware.memory_bandwidth}


def _elementwise_time(x: Inputs, c: Any) -> Array:
    return forms_moe.elementwise_time(x["B"], c, x["W"], x["r"])


def _collective_inputs(table: Table, hardware: Hardware, format: str) -> Inputs:
    if hardware.link_bandwidth is None:
        raise InputError(f"hardware '{hardware.name}': no link between devices")
    return {"V": _column(table, "message_bytes"), "n": _column(table, "tp"),
            "reduce": np.asarray(format == "all_reduce"), "link": hardware.link_bandwidth}


def _collective_time(x: Inputs, c: Any) -> Array:
    return forms_moe.collective_time(x["V"], x["n"], x["reduce"], c, x["link"])


_E, _H = (0.6, 0.02, FRACTION_CAP), (0.8, 0.02, FRACTION_CAP)
_SHARE = (0.8, 0.02, 1.0)    # g as a share of h
_DECODE = {"h": _H, "g": _SHARE, "t0": (8.0, 0.2, 200.0), "beta": (3.0, 0.3, 12.0),
           "tw": (1.0, 0.01, 60.0)}
_PREFILL = {"e": _E, "h": (0.5, 0.02, FRACTION_CAP), "g": _SHARE, "t0": (10.0, 0.2, 300.0),
            "tau": (0.4, 0.002, 50.0), "tw": (0.7, 0.002, 60.0)}

FORMS: dict[str, Form] = {
    "gemm": Form(_gemm_inputs, _gemm_time, {
        "e": _E, "h": _H, "g": _SHARE, "t0": (3.0, 0.1, 300.0), "tau": (0.04, 0.0005, 5.0),
        "tw": (0.5, 0.01, 60.0)}, {"p": 2.0}),
    "attention_prefill": Form(_prefill_inputs, _prefill_time, _PREFILL, {"p": 1.0}),
    "mla_prefill": Form(_mla_prefill_inputs, _prefill_time, _PREFILL, {"p": 2.0}),
    "attention_decode": Form(_decode_inputs, _decode_time, _DECODE, {"e": FRACTION_CAP, "p": 2.0}),
    "mla_decode": Form(_mla_decode_inputs, _mla_decode_time, _DECODE | {"e": _E}, {"p": 1.5}),
    "moe": Form(_moe_inputs, _moe_time, {
        "e": _E, "h": _H, "t0": (25.0, 0.5, 400.0), "beta": (3.0, 0.2, 20.0),
        "cact": (1.5, 0.01, 60.0), "c2": (0.5, 0.002, 60.0), "te": (2.0, 0.01, 60.0),
        "p": (2.0, 1.0, 12.0)}, {}),
    "elementwise": Form(_elementwise_inputs, _elementwise_time, {
        "h": (0.6, 0.02, FRACTION_CAP), "g": _SHARE, "t0": (2.5, 0.05, 200.0)}, {}),
    "collectives": Form(_collective_inputs, _collective_time, {
        "a0": (6.0, 0.5, 500.0), "a1": (1.0, 0.01, 200.0), "x": (0.25, 0.005, 0.95),
        "b0": (20.0, 0.5, 2000.0), "b1": (0.5, 0.01, 200.0), "h": (0.65, 0.01, 0.95)}, {}),
}


def predict(family: str, table: Table, hardware: Hardware, format: str, constants: Constants
            ) -> Array:
    """Times [s] that the form gives for the rows of a table."""
    form = FORMS[family]
    return form.time(form.inputs(table, hardware, format), constants)


def fit(family: str, table: Table, hardware: Hardware, format: str = "bf16") -> Constants:
    """Constants of a kernel family that miss the rows of a table least."""
    return fit_pooled(family, [(table, hardware)], format)


def fit_pooled(family: str, parts: Sequence[tuple[Table, Hardware]], format: str) -> Constants:
    """One set of constants for timings of several devices."""
    inputs, times, weights = [], [], []
    for table, hardware in parts:
        x = FORMS[family].inputs(table, hardware, format)
        time = _column(table, "time_us") * 1e-6
        if not np.all(np.isfinite(time) & (time > 0)):
            raise InputError("timings: column 'time_us' must be above 0 in every row")
        inputs.append({k: np.broadcast_to(v, time.shape) for k, v in x.items()})
        times.append(time)
        weights.append(_weights(family, x.get("r", 1.0), hardware, len(time)))
    time = np.concatenate(times)
    if len(time) < MIN_ROWS:
        raise InputError(f"timings: {len(time)} rows are too few to fit '{family}' on "
                         f"'{parts[0][1].name}'; at least {MIN_ROWS}")
    chosen = np.unique(np.linspace(0, len(time) - 1, min(len(time), ENOUGH_ROWS)).astype(int))
    joined = {k: np.concatenate([x[k] for x in inputs])[chosen] for k in inputs[0]}
    return _solve(family, joined, np.log(time[chosen]), np.concatenate(weights)[chosen])


def _weights(family: str, r: Array, hardware: Hardware, rows: int) -> Array:
    """Weight of each row: on cards whose cache outruns their memory a repeated call on weights or
    KV that stayed in the cache says little of serving, and g <= h can't follow it. Element-wise
    kernels do find their input in the cache: the kernel before has just written it."""
    plain = np.ones(rows)
    if family == "elementwise" or hardware.memory_class != "gddr":
        return plain
    return plain * np.maximum(r, LEAST_WEIGHT)


def _solve(family: str, inputs: Inputs, log_time: Array, weight: Array) -> Constants:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError("fits need scipy: pip install 'tokline[fit]'") from None

    form = FORMS[family]
    names = list(form.bounds)
    start, low, high = (np.log([form.bounds[n][i] for n in names]) for i in range(3))

    def build(theta: Array) -> Constants:
        values = dict(zip(names, np.exp(theta).tolist(), strict=True)) | form.fixed
        if "g" in values:
            values["g"] *= values["h"]
        return FAMILIES[family](**{k: v * 1e-6 if k in TIMES else v for k, v in values.items()})

    def residuals(theta: Array) -> Array:
        return weight * (np.log(form.time(inputs, build(theta))) - log_time)

    best: Any = None
    for shift in (0.0, 1.0):
        # A second start with faster units and a lower floor finds the other side of the valley.
        x0 = np.clip(start + shift * np.where([n in TIMES for n in names], -1.5, 0.3),
                     low + 1e-6, high - 1e-6)
        found = least_squares(residuals, x0, bounds=(low, high), loss="soft_l1", f_scale=SOFT,
                              x_scale="jac", max_nfev=60)
        if best is None or found.cost < best.cost:
            best = found
    return build(best.x)


def fit_gemm(table: Table, hardware: Hardware, format: str = "bf16") -> Chain:
    """GEMM constants from columns m, n, k, time_us (weight_copies, quantises)."""
    return cast(Chain, fit("gemm", table, hardware, format))


def fit_attention_prefill(table: Table, hardware: Hardware, format: str = "bf16") -> Chain:
    """From columns batch, q_len, kv_len, n_heads, n_kv_heads, head_dim, time_us (window)."""
    return cast(Chain, fit("attention_prefill", table, hardware, format))


def fit_attention_decode(table: Table, hardware: Hardware, format: str = "bf16") -> Split:
    """From columns batch, kv_len, n_heads, n_kv_heads, head_dim, time_us."""
    return cast(Split, fit("attention_decode", table, hardware, format))


def fit_mla_prefill(table: Table, hardware: Hardware, format: str = "bf16") -> Chain:
    """From columns batch, q_len, kv_len, n_heads, time_us."""
    return cast(Chain, fit("mla_prefill", table, hardware, format))


def fit_mla_decode(table: Table, hardware: Hardware, format: str = "bf16") -> Split:
    """From columns batch, kv_len, n_heads, time_us."""
    return cast(Split, fit("mla_decode", table, hardware, format))


def fit_moe(table: Table, hardware: Hardware, format: str = "bf16") -> Experts:
    """From columns m, n, k, topk, n_experts, rows, active, tiles_16, tiles_64, tiles_128, time_us
    (tp, ep, gates); simulator.validation.routing draws the counts."""
    return cast(Experts, fit("moe", table, hardware, format))


def fit_elementwise(table: Table, hardware: Hardware, format: str = "norm") -> Pass:
    """From columns bytes, time_us."""
    return cast(Pass, fit("elementwise", table, hardware, format))


def fit_collective(table: Table, hardware: Hardware, format: str = "all_reduce") -> Lines:
    """From columns message_bytes, tp (ranks), time_us."""
    return cast(Lines, fit("collectives", table, hardware, format))
