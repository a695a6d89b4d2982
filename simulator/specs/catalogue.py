"""Names to specs: user folder first, then the installed data, then a checkout.

A file's stem is its canonical name. Aliases are found by reading the one `aliases:` line of each
file as text, so that a look-up parses one YAML file and not the whole catalogue.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from simulator.errors import InputError, nearest
from simulator.specs.hardware import Hardware, read_hardware
from simulator.specs.model import Model, read_model

Kind = Literal["hardware", "models"]
USER_FOLDER = "TOKLINE_HOME"

_ALIASES = re.compile(r"^aliases:\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)
_ALIAS_LINES = re.compile(r"^aliases:[ \t]*\n((?:[ \t]*-[ \t]+.*(?:\n|\Z))+)", re.MULTILINE)
_DEVICES = re.compile(r"([0-9]{1,9})\s*[xX*]\s*(.+)")


def folders(kind: Kind) -> list[Path]:
    """Folders that hold the `kind` of specs, the user's own first."""
    package = Path(__file__).resolve().parent.parent
    home = os.environ.get(USER_FOLDER)
    user = Path(home) if home else Path.home() / ".config" / "tokline"
    return [f for f in (user / kind, package / "data" / kind, package.parent / kind) if f.is_dir()]


def _roots(kind: Kind) -> tuple[tuple[Path, int], ...]:
    return tuple((folder, _modified(folder)) for folder in folders(kind))


def _index(kind: Kind) -> tuple[dict[str, Path], dict[str, str]]:
    return _read_index(_roots(kind))


def _slug(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _aliases_in(text: str) -> list[str]:
    flow, block = _ALIASES.search(text), _ALIAS_LINES.search(text)
    words: list[str] = []
    if flow is not None:
        words = flow.group(1).split(",")
    elif block is not None:
        words = [line.strip().removeprefix("-") for line in block.group(1).splitlines()]
    return [slug for slug in (_slug(word.strip().strip("'\"")) for word in words) if slug]


@lru_cache(maxsize=8)
def _read_paths(roots: tuple[tuple[Path, int], ...]) -> dict[str, Path]:
    """Canonical names below `roots`, read again when a folder's time changes."""
    paths: dict[str, Path] = {}
    for root, _ in roots:
        for path in sorted(root.glob("*.yaml")):
            paths.setdefault(path.stem.lower(), path)
    return paths


@lru_cache(maxsize=8)
def _read_index(roots: tuple[tuple[Path, int], ...]) -> tuple[dict[str, Path], dict[str, str]]:
    """Canonical names, and aliases, for which every file has to be read."""
    paths = _read_paths(roots)
    aliases: dict[str, str] = {_slug(name): name for name in reversed(paths)}
    for name, path in paths.items():
        try:
            data = path.read_bytes()
            if b"aliases:" not in data:
                continue
            text = data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        for alias in _aliases_in(text):
            aliases.setdefault(alias, name)
    return paths, aliases


def catalogue(kind: Kind) -> dict[str, Path]:
    """Canonical name -> file, for every spec in the catalogue."""
    return dict(sorted(_read_paths(_roots(kind)).items()))


def find(kind: Kind, name: str) -> Path | None:
    """File of a canonical name or alias; None where there is none."""
    known = _read_paths(_roots(kind)).get(name.strip().lower())
    if known is not None:
        return known
    paths, aliases = _index(kind)
    return paths.get(aliases.get(_slug(name), ""))


def suggest(kind: Kind, name: str) -> str:
    """Nearest catalogue name, as the end of a message."""
    paths, aliases = _index(kind)
    return nearest(name, dict.fromkeys([*paths, *aliases])) or f" (see 'tokline {kind} list')"


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or Path(name).suffix.lower() in (
        ".yaml", ".yml", ".json", ".gguf") or os.path.isfile(name)


def split_devices(name: str) -> tuple[int | None, str]:
    """`4xh100-sxm` -> (4, `h100-sxm`); (None, name) where no number stands in front."""
    match = _DEVICES.fullmatch(name.strip())
    if match is None or find("hardware", name) is not None or os.path.isfile(name):
        return None, name
    if int(match.group(1)) < 1:
        raise InputError(f"hardware '{name}': needs at least one device")
    return int(match.group(1)), match.group(2)


@lru_cache(maxsize=256)
def _read_hardware(path: Path, modified: int) -> Hardware:
    return read_hardware(path)


@lru_cache(maxsize=256)
def _read_model(path: Path, modified: int) -> Model:
    return read_model(path)


def load_hardware(name: str) -> Hardware:
    """Device by catalogue name, alias or YAML path."""
    path = find("hardware", name)
    if path is None and _is_path(name):
        path = Path(name)
        if os.path.isdir(path):
            raise InputError(f"hardware '{name}': is a folder, not a YAML file")
        if not os.path.exists(path):
            raise InputError(f"hardware '{name}': no such file")
    if path is None:
        raise InputError(f"unknown hardware '{name}'{suggest('hardware', name)}")
    return _read_hardware(path, _modified(path))


def load_model(name: str) -> Model:
    """Model by catalogue name, alias, YAML path, `config.json` path or its folder, or GGUF path."""
    path = find("models", name)
    if path is None and (_is_path(name) or os.path.isdir(name)):
        path = Path(name)
        if not os.path.exists(path):
            raise InputError(f"model '{name}': no such file")
        if path.is_dir() or path.suffix.lower() in (".json", ".gguf"):
            from simulator.importers import import_with_notes

            imported = import_with_notes(path)
            _tell(path, imported.notes)
            model: Model = imported.model
            return model
    if path is None:
        raise InputError(f"unknown model '{name}'{suggest('models', name)}")
    return _read_model(path, _modified(path))


_told: set[tuple[Path, int]] = set()


def _tell(path: Path, notes: Sequence[str]) -> None:
    """Write what an import had to infer to stderr, once a file and process."""
    key = (path, _modified(path))
    if key not in _told:
        _told.add(key)
        for note in notes:
            print(f"tokline: note: {note}", file=sys.stderr)


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
