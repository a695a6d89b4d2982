"""A Dask cluster as an executor; see docs/sweep.md for Ray and MPI."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from simulator.errors import InputError

CONNECT_SECONDS = 10


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The cluster whose scheduler is at `address`. Its workers need tokline installed.

    Dask gives the blocks of a worker that died to the others.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs distributed: pip install 'tokline[distributed]'") from None
    try:
        client: Any = Client(address, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--dask: no scheduler answers at '{address}' "
                         f"({type(error).__name__})") from None
    with client:
        executor: Executor = client.get_executor(retries=3)
        yield executor
