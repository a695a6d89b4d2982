"""The catalogue as rows and as text: what `hardware` and `models` list, show and check."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from simulator.errors import InputError, nearest
from simulator.kv_cache import (
    fixed_state_elements,
    kv_elements_at,
    kv_elements_per_token,
    mixer_kv_elements,
    mixer_state_elements,
)
from simulator.parameters import (
    parameters_active,
    parameters_active_no_input_embedding,
    parameters_total,
)
from simulator.sharding import tensor_parallel_degrees
from simulator.specs.catalogue import catalogue, load_hardware, load_model
from simulator.specs.hardware import QUANTITIES, STATUSES, Hardware
from simulator.specs.model import Attention, Dense, LayerGroup, Mla, Model, model_to_dict
from simulator.units import (
    format_bandwidth,
    format_flops,
    format_memory,
    format_time,
    parse_quantity,
)

# KV figures of a model without a deployment: 16-bit values, as every published table has them.
VALUE_BYTES = 2
CONTEXTS = (8192, 32768, 131072)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], left: int = 1) -> list[str]:
    """Aligned columns; the first `left` to the left, the others to the right."""
    body = [head, *rows]
    widths = [max(len(row[i]) for row in body) for i in range(len(head))]
    lines = []
    for row in body:
        cells = [c.ljust(w) if i < left else c.rjust(w)
                 for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _keep(value: str | None, choices: Iterable[str], wanted: str | None, flag: str) -> bool:
    if wanted is None:
        return True
    known = {c.lower() for c in choices}
    if wanted.lower() not in known:
        raise InputError(f"{flag}: '{wanted}' is not in the catalogue"
                         f"{nearest(wanted, sorted(known))}")
    return (value or "").lower() == wanted.lower()


def hardware_rows(vendor: str | None = None, memory: str | None = None,
                  bandwidth: str | None = None, status: str | None = None,
                  sort: str = "name") -> list[dict[str, Any]]:
    """One row a device, SI numbers."""
    devices = [load_hardware(name) for name in catalogue("hardware")]
    vendors = {d.vendor for d in devices if d.vendor}
    least_memory = 0.0 if memory is None else parse_quantity(memory, "memory", "--memory")
    least_rate = 0.0 if bandwidth is None else parse_quantity(bandwidth, "bandwidth",
                                                              "--bandwidth")
    rows: list[dict[str, Any]] = []
    for d in devices:
        if not (_keep(d.vendor, vendors, vendor, "--vendor")
                and _keep(d.status, STATUSES, status, "--status")):
            continue
        if d.memory_capacity < least_memory or d.memory_bandwidth < least_rate:
            continue
        rows.append({
            "name": d.name, "title": d.title, "vendor": d.vendor, "architecture": d.architecture,
            "status": d.status, "year": None if d.year is None else int(d.year),
            "memory_type": d.memory_type, "memory_bandwidth": d.memory_bandwidth,
            "memory_capacity": d.memory_capacity, "peak_bf16": d.peak_bf16 or d.peak_fp16,
            "peak_fp8": d.peak_fp8, "tdp": d.tdp,
            "price_usd_per_hour": None if d.price is None else d.price * 3600.0,
            "aliases": list(d.aliases), "range": bool(d.timed_ranges),
        })
    keys = {"memory": "memory_capacity", "bandwidth": "memory_bandwidth", "bf16": "peak_bf16",
            "price": "price_usd_per_hour", "year": "year"}
    if sort in keys:
        rows.sort(key=lambda row: -(row[keys[sort]] or 0))
    elif sort == "vendor":
        rows.sort(key=lambda row: (row["vendor"] or "", row["name"]))
    return rows


def _optional(value: float | None, form: Any) -> str:
    return "-" if value is None else str(form(value))


def hardware_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The list as a table."""
    body = [(
        row["name"], row["status"] + (" ~" if row["range"] else ""),
        format_memory(row["memory_capacity"]), format_bandwidth(row["memory_bandwidth"]),
        _optional(row["peak_bf16"], lambda v: format_flops(v, "")),
        _optional(row["peak_fp8"], lambda v: format_flops(v, "")),
        _optional(row["tdp"], lambda v: f"{v:.0f} W"),
        _optional(row["price_usd_per_hour"], lambda v: f"{v:.2f}")) for row in rows]
    head = ("name", "status", "memory", "bandwidth", "bf16", "fp8", "TDP", "USD/h")
    lines = table(head, body, 2)
    return [*lines, "", f"{len(rows)} devices. Per device; bf16 (fp16 where there is no bf16) and "
            "fp8 in FLOP/s, dense;", "~ marks figures that are ranges: the middle is shown."]


def hardware_dict(h: Hardware) -> dict[str, Any]:
    """The spec in SI numbers; a range as {low, mid, high}; provenance beside it."""
    values: dict[str, Any] = {}
    for field in h.__struct_fields__:
        if field in ("ranges", "provenance", "path"):
            continue
        value = getattr(h, field)
        values[field] = msgspec.to_builtins(h.ranges.get(field, value))
    values["provenance"] = msgspec.to_builtins(h.provenance)
    return values


_FORMS = {"bandwidth": format_bandwidth, "memory": format_memory, "compute": format_flops,
          "time": format_time, "frequency": lambda v: f"{v / 1e6:,.0f} MHz",
          "power": lambda v: f"{v:,.0f} W", "price": lambda v: f"{v * 3600:.2f} USD/h",
          "energy_per_byte": lambda v: f"{v / 8 * 1e12:.2f} pJ/bit",
          "energy_per_flop": lambda v: f"{v * 1e12:.2f} pJ/FLOP",
          "count": lambda v: f"{v:,.0f}", "fraction": lambda v: f"{v:.2f}",
          "factor": lambda v: f"{v:.3g} x"}


def hardware_show_lines(h: Hardware) -> list[str]:
    """Every number with its source, date and confidence."""
    lines = [f"{h.title} ({h.name})", f"  vendor {h.vendor or '-'}, architecture "
             f"{h.architecture or '-'}, {h.form_factor or '-'}, status {h.status}"]
    if h.aliases:
        lines += _wrapped("  aliases: " + ", ".join(h.aliases))
    if h.granularity:
        lines += _wrapped(f"  one device is: {h.granularity}")
    lines.append("")
    sources: dict[str, int] = {}
    rows = []
    for field, dimension in QUANTITIES.items():
        value = getattr(h, field)
        if value is None:
            continue
        form: Any = (lambda v: f"{v:.0f}") if field == "year" else _FORMS[dimension]
        r, p = h.ranges.get(field), h.provenance.get(field)
        text = form(value) if r is None else f"{form(r.low)} .. {form(r.mid)} .. {form(r.high)}"
        if p is None or p.source is None:
            rows.append((field, text, "no source", ""))
            continue
        number = sources.setdefault(f"{p.source} ({p.date or 'no date'})", len(sources) + 1)
        state = p.confidence + ("" if p.verified else ", unverified")
        rows.append((field, text, state, f"[{number}]"))
    lines += [f"  {line}" for line in table(("field", "value", "confidence", "source"), rows, 4)]
    for tier in h.tiers:
        lines.append(f"  tier {tier.name}: {format_memory(tier.capacity)} at "
                     f"{format_bandwidth(tier.bandwidth)}")
    lines += ["", "  sources"]
    for text, number in sources.items():
        lines += _wrapped(f"  [{number}] {text}")
    for claim in h.claims:
        lines += _wrapped(f'  announced: {claim.text} ({claim.source}, {claim.date})')
    for note in h.notes:
        lines += _wrapped(f"  note: {note}")
    return lines


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 100, subsequent_indent="      ")


def check_rows(chosen: Iterable[str]) -> list[dict[str, Any]]:
    """Findings of the linter over devices."""
    from simulator.specs.lint import lint

    rows = []
    for name in chosen:
        hardware = load_hardware(name)
        rows += [{"hardware": hardware.name, "level": f.level, "key": f.key, "message": f.message}
                 for f in lint(hardware)]
    return rows


def check_lines(rows: list[dict[str, Any]], devices: int) -> list[str]:
    """Findings as text, errors first."""
    ordered = sorted(rows, key=lambda row: (row["level"] != "error", row["hardware"]))
    lines: list[str] = []
    for row in ordered:
        lines += _wrapped(f"{row['level']}: {row['hardware']}: {row['key']}: {row['message']}")
    errors = sum(row["level"] == "error" for row in rows)
    return [*lines, f"{devices} devices, {errors} errors, {len(rows) - errors} warnings"]


def model_dict(m: Model) -> dict[str, Any]:
    """Counts of a model; KV at 2 bytes a value, growing and fixed parts apart."""
    state = fixed_state_elements(m)
    return {
        "name": m.name,
        "title": m.title or m.name,
        "family": m.family,
        "layers": m.layer_count,
        "hidden": m.hidden,
        "vocabulary": m.vocabulary,
        "positions": m.positions,
        "tied_embeddings": m.tied_embeddings,
        "formats": dict(m.formats),
        "parameters_total": int(parameters_total(m)),
        "parameters_active": round(parameters_active(m)),
        "parameters_active_no_input_embedding": round(parameters_active_no_input_embedding(m)),
        "kv_bytes_per_token": int(kv_elements_per_token(m) * VALUE_BYTES),
        "kv_bytes_at": {str(c): int(kv_elements_at(m, c) * VALUE_BYTES) for c in CONTEXTS},
        "fixed_state_values": int(state),
        "fixed_state_bytes": int(state * VALUE_BYTES),
        "layer_groups": [_group_dict(m, g) for g in m.layers],
        "tensor_parallel": [{"tp": t.tp, "valid": t.valid, "reason": t.reason}
                            for t in tensor_parallel_degrees(m)],
        "spec": model_to_dict(m),
    }


def _group_dict(m: Model, group: LayerGroup) -> dict[str, Any]:
    window = group.mixer.window or group.mixer.chunk if isinstance(group.mixer, Attention) else None
    return {
        "count": group.count,
        "mixer": _mixer_text(group),
        "ffn": _ffn_text(group),
        "window": window,
        "kv_bytes_per_token": int(group.count * mixer_kv_elements(group.mixer) * VALUE_BYTES),
        "fixed_state_bytes": int(group.count * mixer_state_elements(group.mixer, m.hidden)
                                 * VALUE_BYTES),
    }


def _mixer_text(group: LayerGroup) -> str:
    a = group.mixer
    if a is None:
        return "none"
    if isinstance(a, Attention):
        kind = "MHA" if a.kv_heads == a.heads else "MQA" if a.kv_heads == 1 else "GQA"
        limit = f", window {a.window}" if a.window else f", chunk {a.chunk}" if a.chunk else ""
        shared = ", shares KV" if a.shares_kv else ", cross" if a.cross else ""
        return f"{kind} {a.heads}/{a.kv_heads} x {a.head_dim}{limit}{shared}"
    if isinstance(a, Mla):
        return f"MLA {a.heads} heads, latent {a.kv_rank} + {a.rope_dim}"
    return type(a).__name__


def _ffn_text(group: LayerGroup) -> str:
    f = group.ffn
    if f is None:
        return "none"
    if isinstance(f, Dense):
        return f"MLP {f.width}{' gated' if f.gated else ''}"
    shared = f" + shared {f.shared_width}" if f.shared_width else ""
    return f"{f.experts} experts x {f.width}, top {f.top_k}{shared}"


def model_rows(family: str | None = None, smallest: str | None = None, largest: str | None = None,
               sort: str = "name") -> list[dict[str, Any]]:
    """One row a model."""
    models = [load_model(name) for name in catalogue("models")]
    families = {m.family for m in models if m.family}
    low, high = _count(smallest, "--smallest", 0.0), _count(largest, "--largest", float("inf"))
    rows: list[dict[str, Any]] = []
    for m in models:
        total = parameters_total(m)
        if not _keep(m.family, families, family, "--family") or not low <= total <= high:
            continue
        rows.append({
            "name": m.name, "title": m.title or m.name, "family": m.family,
            "layers": m.layer_count, "parameters_total": int(total),
            "parameters_active": round(parameters_active(m)), "positions": m.positions,
            "kv_bytes_per_token": int(kv_elements_per_token(m) * VALUE_BYTES),
            "weights": m.formats.get("weights", "bf16"), "aliases": list(m.aliases),
        })
    keys = {"parameters": "parameters_total", "active": "parameters_active",
            "kv": "kv_bytes_per_token"}
    if sort in keys:
        rows.sort(key=lambda row: -row[keys[sort]])
    elif sort == "family":
        rows.sort(key=lambda row: (row["family"] or "", row["name"]))
    return rows


def _count(text: str | None, flag: str, default: float) -> float:
    if text is None:
        return default
    units = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
    scale = units.get(text[-1:].lower(), 1.0)
    try:
        count = float(text[:-1] if scale != 1.0 else text) * scale
    except ValueError:
        count = math.nan
    if not math.isfinite(count):
        raise InputError(f"{flag}: '{text}' is not a number of parameters, write 7e9 or 7B")
    return count


def model_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The list as a table."""
    body = [(
        row["name"], row["family"] or "-", f"{row['parameters_total'] / 1e9:,.2f}B",
        f"{row['parameters_active'] / 1e9:,.2f}B", str(row["layers"]), _tokens(row["positions"]),
        f"{row['kv_bytes_per_token']:,}", row["weights"]) for row in rows]
    head = ("name", "family", "total", "active", "layers", "context", "KV/token", "weights")
    return [*table(head, body, 2), "", f"{len(rows)} models. Text part only; active counts both "
            "embeddings; KV [bytes] at 2 bytes a value."]


def _tokens(count: int) -> str:
    """`131072` -> `128k`."""
    return f"{count // 1024:,}k" if count % 1024 == 0 else f"{count:,}"


def _degree_lines(degrees: list[dict[str, Any]]) -> list[str]:
    """Valid tensor-parallel degrees with what they replicate, and why the powers of two fail."""
    lines = _wrapped("  tensor parallel: " + "; ".join(
        f"{t['tp']}" + (f" ({t['reason']})" if t["reason"] else "") for t in degrees if t["valid"]))
    for t in degrees:
        if not t["valid"] and t["tp"] in (2, 4, 8, 16):
            lines += _wrapped(f"  not {t['tp']}: {t['reason']}")
    return lines


def model_show_lines(m: Model) -> list[str]:
    """Counts, KV by layer kind, and where they come from."""
    d = model_dict(m)
    source = m.source
    lines = [f"{d['title']} ({m.name}), family {m.family or '-'}"]
    if m.aliases:
        lines += _wrapped("  aliases: " + ", ".join(m.aliases))
    lines += [
        "",
        f"  parameters              {d['parameters_total']:>22,}  total, tied matrices once",
        f"  active                  {d['parameters_active']:>22,}  one token, both embeddings",
        f"  active, no input table  {d['parameters_active_no_input_embedding']:>22,}  what 2 FLOPs "
        "a token are counted on",
        f"  KV bytes a token        {d['kv_bytes_per_token']:>22,}  2 bytes a value, below each "
        "window",
        *(f"  KV at {int(c):>7,} tokens   {v:>22,}  bytes, {format_memory(v)}"
          for c, v in d["kv_bytes_at"].items()),
        f"  fixed state             {d['fixed_state_bytes']:>22,}  bytes a sequence, whatever the "
        "context",
        f"  {m.layer_count} layers, hidden {m.hidden}, vocabulary {m.vocabulary:,}, up to "
        f"{m.positions:,} tokens, {'tied' if m.tied_embeddings else 'untied'} embeddings",
        "",
    ]
    rows = [(f"{g['count']}", g["mixer"], g["ffn"], f"{g['kv_bytes_per_token']:,}",
             f"{g['fixed_state_bytes']:,}") for g in d["layer_groups"]]
    lines += [f" {line}" for line in table(
        ("layers", "mixer", "feed-forward", "KV/token", "state B"), rows, 3)]
    lines += ["", *_degree_lines(d["tensor_parallel"])]
    if source is not None:
        state = source.confidence + ("" if source.verified else ", unverified")
        lines += ["", *_wrapped(f"  source: {source.source} ({source.date or 'no date'}; {state})")]
    for note in m.notes:
        lines += _wrapped(f"  note: {note}")
    return lines


__all__ = ["check_lines", "check_rows", "hardware_dict", "hardware_lines",
           "hardware_rows", "hardware_show_lines", "model_dict", "model_lines", "model_rows",
           "model_show_lines"]
