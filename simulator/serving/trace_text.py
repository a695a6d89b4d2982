"""The text of a trace file: plain or gzip, with or without a byte order mark, never binary."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from simulator.errors import InputError

_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 65_536


def read_bytes(path: Path, where: str = "trace") -> bytes:
    """All of a text file, unpacked, without a byte order mark; refused where it is no text."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{where}: '{path}': no such file") from None
    except IsADirectoryError:
        raise InputError(f"{where}: '{path}' is a folder, not a file") from None
    except OSError as error:
        raise InputError(f"{where}: '{path}': cannot be read ({error.strerror})") from None
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            raise InputError(f"{where}: '{path}': the gzip file is cut short or damaged; unpack "
                             "what there is with 'gzip -dc'") from None
    if data.startswith(_UTF16):
        raise InputError(f"{where}: '{path}' is UTF-16: save it as UTF-8")
    data = data.removeprefix(_BOM)
    if not data.strip():
        raise InputError(f"{where}: '{path}' is empty")
    if b"\0" in data[:_LOOKED_AT]:
        kind = "a Parquet file: write it as CSV" if data.startswith(b"PAR1") else "binary, not text"
        raise InputError(f"{where}: '{path}' is {kind}")
    return data


def read_text(path: Path, where: str = "trace") -> str:
    """The same decoded; refused where the bytes are not UTF-8."""
    try:
        return read_bytes(path, where).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: '{path}': byte {error.start:,} is not UTF-8 text") from None
