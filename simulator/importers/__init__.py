"""Models from the files that checkpoints ship: a Hugging Face `config.json` or a GGUF header."""

from __future__ import annotations

from pathlib import Path

from simulator.errors import InputError
from simulator.importers.gguf import import_gguf
from simulator.importers.huggingface import Imported, import_config
from simulator.importers.yaml_text import write_yaml
from simulator.specs.model import Model

__all__ = ["Imported", "import_model", "import_with_notes", "write_yaml"]


def import_with_notes(path: str | Path) -> Imported:
    """Model of a config.json, its folder or a GGUF file, with what had to be inferred."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
        if not file.is_file():
            raise InputError(f"{path}: the folder holds no config.json")
    if not file.is_file():
        raise InputError(f"{path}: no such file")
    if file.suffix.lower() == ".gguf":
        return import_gguf(file)
    return import_config(file)


def import_model(path: str | Path) -> Model:
    """Model of a config.json, its folder or a GGUF file."""
    return import_with_notes(path).model
