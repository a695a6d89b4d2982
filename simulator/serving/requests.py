"""The requests of a run: when they arrive, how long they are, which prefix blocks they share.

Columns of arrays, one element a request. Arrivals [s] count from the start of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.specs.model import Model

Times = NDArray[np.float64]
Counts = NDArray[np.int64]


def _no_blocks() -> Counts:
    return np.zeros(0, dtype=np.int64)


def take_blocks(blocks: Counts | None, starts: Counts,
                index: Counts) -> tuple[Counts | None, Counts]:
    """(blocks, block starts) of the requests at `index`, in that order."""
    if blocks is None:
        return blocks, starts
    counts = np.diff(starts)[index]
    found = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    offsets = np.repeat(starts[index] - found[:-1], counts)
    return blocks[np.arange(found[-1]) + offsets], found


@dataclass(frozen=True)
class Requests:
    """n requests in the order of their arrival.

    arrival        float64[n] [s], ascending
    input, output  int64[n] [tokens], at least 1
    blocks         int64[m], ids of the prefix blocks of all prompts one after another; equal ids
                   are equal tokens after equal tokens. None: no prompt shares a known block
    block_starts   int64[n + 1]; blocks of request i: blocks[block_starts[i]:block_starts[i + 1]]
    block_tokens   tokens of a block; 0 without blocks
    shared_prefix  first tokens that all prompts have in common
    dropped        requests of the source that are not here, by reason
    notes          what was done to the source (sorted, failed requests left out ...)
    """

    arrival: Times
    input: Counts
    output: Counts
    blocks: Counts | None = None
    block_starts: Counts = field(default_factory=_no_blocks)
    block_tokens: int = 0
    shared_prefix: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse columns of different lengths, unsorted arrivals and lengths below 1."""
        n = len(self.arrival)
        if not n == len(self.input) == len(self.output):
            raise InputError(f"requests: {n} arrivals, {len(self.input)} inputs and "
                             f"{len(self.output)} outputs; the columns differ in length")
        if n and not (np.all(np.isfinite(self.arrival)) and np.all(np.diff(self.arrival) >= 0.0)):
            raise InputError("requests: arrivals must be finite and ascending")
        if n and (self.input.min() < 1 or self.output.min() < 1):
            raise InputError("requests: every input and output must be at least 1 token")
        if self.blocks is not None and (len(self.block_starts) != n + 1 or self.block_tokens < 1
                                        or self.block_starts[-1] != len(self.blocks)):
            raise InputError("requests: prefix blocks don't match the number of requests")
        if self.shared_prefix < 0:
            raise InputError(f"shared prefix: {self.shared_prefix} is below 0")

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def duration(self) -> float:
        """Time [s] from the first arrival to the last."""
        return float(self.arrival[-1] - self.arrival[0]) if len(self) else 0.0

    @property
    def rate(self) -> float:
        """Mean arrivals a second; infinite where all arrive at once."""
        if len(self) < 2:
            return 0.0
        return (len(self) - 1) / self.duration if self.duration > 0.0 else float("inf")

    def blocks_of(self, index: int) -> Counts:
        """Prefix blocks of one request."""
        if self.blocks is None:
            return _no_blocks()
        return self.blocks[self.block_starts[index]:self.block_starts[index + 1]]

    def take(self, index: NDArray[np.int64]) -> Requests:
        """The requests at ascending `index`, with their blocks."""
        blocks, starts = take_blocks(self.blocks, self.block_starts, index)
        return replace(self, arrival=self.arrival[index], input=self.input[index],
                       output=self.output[index], blocks=blocks, block_starts=starts)

    def at_rate(self, rate: float) -> Requests:
        """The same requests with arrivals stretched to a mean of `rate` a second."""
        if not (np.isfinite(rate) and rate > 0.0):
            raise InputError(f"rate: {rate:g} is not above 0")
        if not np.isfinite(self.rate) or self.rate == 0.0:
            raise InputError("rate: the requests arrive at once, so there is no rate to stretch")
        return replace(self, arrival=(self.arrival - self.arrival[0]) * (self.rate / rate))


def requests_of(arrival: Times, input: Counts, output: Counts, shared_prefix: int = 0) -> Requests:
    """Requests of made-up arrivals and lengths, without prefix blocks."""
    return Requests(np.asarray(arrival, dtype=np.float64), np.asarray(input, dtype=np.int64),
                    np.asarray(output, dtype=np.int64), shared_prefix=shared_prefix)


def within_positions(requests: Requests, model: Model, where: str = "requests"
                     ) -> tuple[Requests, dict[str, int]]:
    """Requests within a model's context, and how many are not, by reason; refused if all are."""
    total, most = requests.input + requests.output, int(np.max(model.positions))
    beyond = total > most
    if not beyond.any():
        return requests, {}
    words = f"beyond the {most:,} positions of {model.name}"
    if beyond.all():
        i = int(np.argmin(total))
        raise InputError(f"{where}: none can be served; "
                         + (f"{requests.input[i]:,} + {requests.output[i]:,} tokens are {words}"
                            if np.ptp(total) == 0 else
                            f"the shortest has {requests.input[i]:,} + {requests.output[i]:,} "
                            f"tokens, {words}"))
    return requests.take(np.flatnonzero(~beyond)), {words: int(beyond.sum())}
