"""Printed names to catalogue names: devices, models, engines and number formats.

The rules are data (`names.yaml`). A name that none of them knows is an `UnknownError` with the
reason, so that its row is reported as not covered; nothing is guessed.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from simulator.errors import InputError
from simulator.executor.comparison_shapes import SHAPES
from simulator.executor.cut import at_format, cut
from simulator.specs.catalogue import find, load_hardware, load_model, suggest
from simulator.specs.hardware import Hardware
from simulator.specs.model import Model
from simulator.specs.strict_yaml import load_yaml
from simulator.validation.measurements import Row

# A row may name a file instead of a device or a model, and an engine profile behind this word.
_FILES = (".yaml", ".yml")
PROFILE = "profile:"
Spec = TypeVar("Spec")
# A model as the executor cut it: `llama-3.2-1b layers=2 scale=0.5`.
_CUT = re.compile(r"(?P<name>\S+)(?= layers=| scale=)(?: layers=(?P<layers>\d{1,5}))?"
                  r"(?: scale=(?P<scale>[0-9.e+-]+))?")
# A printed memory is the catalogue's within this: of 48 GB some cards leave 45.
SAME_MEMORY = 0.07
# Likeness from which a model of another name is worth a hint.
NEAR = 0.85


class UnknownError(InputError):
    """A printed name that can't be mapped; the reason for not covering a row."""


@lru_cache(maxsize=1)
def rules() -> dict[str, Any]:
    """The rules of `names.yaml`."""
    return load_yaml(Path(__file__).with_name("names.yaml"))


def _read(load: Callable[[str], Spec], path: str) -> Spec:
    try:
        return load(path)
    except InputError as error:
        raise UnknownError(str(error)) from None


def _counted(printed: str) -> tuple[str, int | None]:
    """A device's name on its own, and how many of them the printed form counts."""
    text = printed.strip().lower()
    text = rules()["machines"].get(text, text)
    for pattern in rules()["counts"]:
        match = re.fullmatch(pattern, text)
        if match is not None:
            found = match.groupdict()
            count = (math.ceil(int(found["cores"]) / 2) if "cores" in found
                     else int(found["count"]))
            return found["name"].strip(), count
    return text, None


def devices_of(printed: str, stated: int | None) -> int | None:
    """Devices of a row; UnknownError where its name counts others than its column.

    Of the devices of a rented machine a row may use some.
    """
    count = _counted(printed)[1]
    machine = printed.strip().lower() in rules()["machines"]
    if machine and count is not None and stated is not None and 1 <= stated < count:
        return stated
    if count is not None and stated is not None and count != stated:
        raise UnknownError(f"{printed}, and n_devices says {stated}")
    return count if stated is None else stated


@lru_cache(maxsize=4096)
def hardware_of(printed: str) -> Hardware:
    """The device that a source's name for it means, or that a YAML file describes."""
    if printed.endswith(_FILES):
        return _read(load_hardware, printed)
    text = _counted(printed)[0]
    candidates = [rules()["hardware"].get(text), text]
    for pattern in rules()["hardware_patterns"]:
        match = re.match(pattern, text)
        if match is not None:
            candidates.append(match.group(1))
    for name in candidates:
        if name and find("hardware", name) is not None:
            return load_hardware(name)
    found = _of_size(text)
    if found is None:
        raise UnknownError(f"device not in the catalogue: {printed}")
    return found


def _of_size(text: str) -> Hardware | None:
    """Device printed with its cores or memory behind the name, where the catalogue's has as many.

    The memory of a device that shares it with its host is the machine's choice, and may be any.
    """
    match = re.fullmatch(rules()["device_sizes"], text)
    if match is None:
        return None
    for name in filter(None, (match["cores"] and f"{match['name']} {match['cores']}-core",
                              match["name"])):
        if find("hardware", name) is None:
            continue
        hardware = load_hardware(name)
        memory = float(match["memory"] or 0.0) * 1e9
        cores = float(match["cores"] or 0.0)
        shared = hardware.memory_class == "lpddr"
        if cores not in (0.0, hardware.units or 0.0):
            continue
        if shared or memory == 0.0 or abs(memory / hardware.memory_capacity - 1.0) < SAME_MEMORY:
            return hardware
    return None


def _shorter(name: str) -> tuple[list[str], str]:
    """A model's name without its organisation and the endings that don't change its shape, and
    the one of those endings that tells a number format."""
    found, written = [name], ""
    if "/" in name:
        found.append(name.rsplit("/", 1)[1])
    slug = found[-1]
    while (shorter := re.sub(rules()["same_shape"], "", slug)) != slug:
        ending = slug[len(shorter):].lstrip("-")
        if not written and _format_rule(ending) is not None:
            written = ending
        slug = shorter
        found.append(slug)
    return found, written


@lru_cache(maxsize=4096)
def model_of(printed: str) -> tuple[Model, str]:
    """(model, number format that its name ends in, or ''); a YAML or JSON file by its path."""
    if printed.endswith((*_FILES, ".json")):
        return _read(load_model, printed), ""
    match = _CUT.fullmatch(printed.strip())
    if match is not None or printed.strip() in SHAPES:
        return _cut_model(printed.strip(), match), ""
    whole = printed.strip().lower().removesuffix(".gguf")
    name = whole.replace(" ", "-").replace("_", "-")
    ending = re.search(rules()["gguf_ending"], whole)
    shorter, written = _shorter(name)
    names = [whole, *shorter]
    if ending is not None:
        written = ending.group(0).lstrip(" .-").removeprefix("ud-")
        names += _shorter(whole[: ending.start()].replace(" ", "-"))[0]
    # Ollama's tags with a space where their colon is, and versions with an underscore.
    names += [name.replace("-", ":", 1) for name in shorter]
    names += _shorter(_UNDERSCORED.sub(".", printed.strip().lower()).replace("_", "-"))[0]
    for candidate in [rules()["models"].get(name, name) for name in names]:
        if find("models", candidate) is not None:
            return load_model(candidate), written
    raise UnknownError(f"model not in the catalogue: {printed}{_near(shorter)}")


_UNDERSCORED = re.compile(r"(?<=-\d)_(?=\d-)")
_SIZE = re.compile(r"(?<![\d.])(?:\d+x)?\d+(?:\.\d+)?[bm](?![a-z])")


def _near(written: Sequence[str]) -> str:
    """The catalogue's nearest model, where it is of the same family and size; else nothing."""
    for name in reversed(written):
        close = re.search(r"'(.+)'", suggest("models", name))
        if close is None:
            continue
        found = _shorter(close[1])[0][-1]
        family, other = re.split(r"[^a-z]", name)[0], re.split(r"[^a-z]", found)[0]
        if (_SIZE.findall(found) == _SIZE.findall(name) and family == other
                and SequenceMatcher(None, name, found).ratio() >= NEAR):
            return f" (did you mean '{close[1]}'?)"
    return ""


def _cut_model(printed: str, match: re.Match[str] | None) -> Model:
    """The model that the executor ran: a catalogue's, cut to some layers or scaled, or its own."""
    if match is None:
        return SHAPES[printed]
    layers, scale = match.group("layers"), match.group("scale")
    try:
        kept = cut(model_of(match.group("name"))[0], None if layers is None else int(layers),
                   1.0 if scale is None else float(scale))
    except (InputError, ValueError) as error:
        raise UnknownError(f"{printed}: {error}") from None
    return at_format(kept, "bf16").replace(name=printed)  # type: ignore[no-any-return]


def _version(text: str) -> tuple[int, ...] | None:
    match = re.search(r"(\d+)\.(\d+|x)", text)
    if match is None:
        return None
    return int(match.group(1)), 0 if match.group(2) == "x" else int(match.group(2))


def _before(date: str, limit: str) -> bool:
    """Whether a printed date lies before a month; a year alone means its middle."""
    match = re.search(r"\b(20\d\d)(?:-(\d\d))?", date)
    return match is not None and f"{match.group(1)}-{match.group(2) or '07'}" < limit


def is_cpu(hardware: Hardware) -> bool:
    """Whether a device is a processor's own cores and not an accelerator."""
    return ((hardware.unit_kind or "").lower().startswith("core")
            and hardware.memory_class in ("ddr", "lpddr"))


def _engine_text(printed: str) -> str:
    """A printed engine in lower case, under its own name."""
    text = printed.strip().lower()
    for alias in rules()["engine_aliases"]:
        text = re.sub(alias["match"], alias["engine"], text)
    return text


@lru_cache(maxsize=4096)
def host_of(printed: str) -> dict[str, Any]:
    """The processor printed beside a device: `host`, and whether it is an `arm` one; or nothing."""
    return next((rule for rule in rules()["hosts"]
                 if re.search(rule["match"], printed.strip().lower()) is not None), {})


@lru_cache(maxsize=4096)
def engine_of(printed: str, version: str, date: str, device: str, several: bool = False) -> str:
    """Name of the engine profile, by engine, version or else date, and device or `several`."""
    if printed.startswith(PROFILE):
        return printed.removeprefix(PROFILE)
    text, number = _engine_text(printed), _version(version) or _version(printed)
    hardware = hardware_of(device)
    for rule in rules()["engines"]:
        if re.search(rule["match"], text) is None:
            continue
        if hardware.vendor and rule.get("only", "") not in hardware.vendor.lower():
            raise UnknownError(f"{printed} doesn't run on devices of {hardware.vendor}")
        if "vendor" in rule and rule["vendor"] not in (hardware.vendor or "").lower():
            continue
        if rule.get("architecture", hardware.architecture) != hardware.architecture:
            continue
        if rule.get("kind") == "cpu" and not is_cpu(hardware):
            continue
        if rule.get("devices") == "several" and not several:
            continue
        if rule.get("host") == "arm" and not host_of(device).get("arm"):
            continue
        if "below" in rule:
            limit = _version(rule["below"])
            older = number < limit if number and limit else _before(date, rule["before"])
            if not older:
                continue
        return str(rule["profile"])
    raise UnknownError(f"engine without a profile: {printed or 'not stated'}")


def engine_known(printed: str) -> str | None:
    """Some profile of an engine that is printed without version, date and device, if any."""
    text = _engine_text(printed)
    return next((str(rule["profile"]) for rule in rules()["engines"]
                 if re.search(rule["match"], text) is not None), None)


def _format_rule(text: str) -> dict[str, str] | None:
    for rule in rules()["formats"]:
        match = re.search(rule["match"], text) if text else None
        if match is not None:
            return {key: rule[key].format(**match.groupdict())
                    for key in ("weights", "activations", "head") if key in rule}
    return None


@lru_cache(maxsize=4096)
def formats_of(printed: str, ending: str) -> dict[str, str]:
    """weights, activations and (where they are quantised too) head, of a printed format.

    `ending` is what the model's name ends in; it tells what the format leaves open.
    """
    for text in (printed.strip().lower(), ending):
        found = _format_rule(text)
        if found is not None:
            return found
    if not printed.strip():
        raise UnknownError("number format of the weights not stated")
    raise UnknownError(f"number format without a rule: {printed}")


@lru_cache(maxsize=256)
def kv_format_of(printed: str) -> str | None:
    """Format of the KV cache; None where the source doesn't print it."""
    text = printed.strip().lower()
    if not text:
        return None
    if text == "auto":    # to the engines that have the word, what the model computes in
        return "bf16"
    for rule in rules()["kv_formats"]:
        if re.search(rule["match"], text) is not None:
            return str(rule["kv"])
    raise UnknownError(f"KV format without a rule: {printed}")


_LIMITS = {"at": operator.eq, "least": operator.ge, "below": operator.lt}


@lru_cache(maxsize=4096)
def _protocol(notes: str) -> dict[str, Any] | None:
    return next((rule for rule in rules()["protocols"]
                 if re.search(rule["match"], notes.lower()) is not None), None)


def protocol_of(notes: str) -> tuple[float | None, float]:
    """(requests of each user, mean length over the printed one) of the benchmark that ran."""
    rule = _protocol(notes)
    if rule is None:
        return None, 1.0
    return float(rule["rounds"]), (1.0 + float(rule["shortest"])) / 2.0


def held_steps(row: Row) -> float:
    """Mean of the decode steps that the benchmark's server was told to hold a request back."""
    for rule in (_protocol(row.notes) or {}).get("holds", ()):
        words = (str(rule.get(name, "")) in getattr(row, name).lower()
                 for name in ("engine", "hardware", "model", "weights"))
        limits = (isinstance(printed := getattr(row, name), int | float) and holds(printed, limit)
                  for key, holds in _LIMITS.items() for name, limit in rule.get(key, {}).items())
        if all(words) and all(limits):
            return float(rule["steps"])
    return 0.0


def length_of(value: float | str | None, what: str = "length") -> float | None:
    """Tokens (or what `what` says) that a printed length means; None where it isn't stated."""
    if not isinstance(value, str):
        return value
    known = rules()["lengths"].get(value.strip().lower())
    if known is None:
        raise UnknownError(f"{what} is not a number: {value}")
    return float(known)


__all__ = ["PROFILE", "UnknownError", "devices_of", "engine_known", "engine_of", "formats_of",
           "hardware_of", "held_steps", "host_of", "is_cpu", "kv_format_of", "length_of",
           "model_of", "protocol_of", "rules"]
