"""A Model as the YAML text a person would write."""

from __future__ import annotations

from typing import Any

import yaml

from simulator.specs.model import Model, model_to_dict


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or 1.2 would read as something else than text."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    quoted = not value[:1].isalpha() or value.lower() in ("yes", "no", "on", "off", "true",
                                                          "false", "null", "y", "n")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if quoted else None)


_Dumper.add_representer(str, _text)


def _flow(value: Any, width: int = 4000) -> str:
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=width,
                     allow_unicode=True).strip().removesuffix("...").strip()


def _groups(key: str, groups: list[dict[str, Any]]) -> list[str]:
    lines = [f"{key}:"]
    for group in groups:
        marker = "  - "
        for name, value in group.items():
            lines.append(f"{marker}{name}: {_flow(value)}")
            marker = "    "
    return lines


def write_yaml(model: Model) -> str:
    """YAML text that reads back to an equal model.

    Formats and source are given in full, layers one part a line.
    """
    told = model_to_dict(model)
    told["formats"] = dict(model.formats)
    if model.source is not None:
        told["source"] = {**told["source"], "confidence": model.source.confidence,
                          "verified": model.source.verified}
    lines: list[str] = []
    for key in (k for k in Model.__struct_fields__ if k in told):
        value = told[key]
        if key in ("layers", "mtp"):
            lines += _groups(key, value)
        elif key == "notes":
            lines += ["notes:", *(f"  - {_flow(str(note))}" for note in value)]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"
