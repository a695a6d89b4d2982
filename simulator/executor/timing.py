"""How long a call takes: the median of repeats with its spread, and on what it ran.

On CUDA events on the stream take the times, so what the host does meanwhile isn't counted twice;
on a CPU the clock of the process does, with the threads of torch pinned to a number.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from simulator.errors import InputError

Call = Callable[[], object]
# A median has a spread from three values on.
FEWEST = 3
# Share of the median between p10 and p90 above which something else ran.
FAR_APART = 0.5
# Seconds of work after which a machine runs at its pace.
SETTLING = 3.0


@dataclass(frozen=True)
class Timing:
    """Median, p10 and p90 [s] of `repeats` runs, and the runs in their order."""

    median: float
    low: float
    high: float
    repeats: int
    runs: tuple[float, ...] = ()

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """The timing of single runs."""
        low, median, high = np.quantile(seconds, (0.1, 0.5, 0.9))
        return cls(float(median), float(low), float(high), len(seconds), tuple(seconds))

    @property
    def disturbed(self) -> bool:
        """Whether the runs are too far apart for their median to tell the machine's time."""
        return self.high - self.low > FAR_APART * self.median

    @classmethod
    def joined(cls, timings: Sequence[Timing]) -> Timing:
        """One timing of the runs of several."""
        return cls.of([seconds for t in timings for seconds in t.runs])

    def per(self, count: float) -> Timing:
        """The time of one of `count` equal parts."""
        return Timing.of([seconds / count for seconds in self.runs])


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity mask, where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_threads(threads: int | None = None) -> int:
    """Let torch use `threads` (default: all usable CPUs); their number."""
    usable = usable_cpus()
    if threads is not None and threads > usable:
        raise InputError(f"--threads: {threads:,} are more than the {usable} CPUs that this "
                         "process may use")
    chosen = usable if threads is None else threads
    torch.set_num_threads(chosen)
    return chosen


def find_device(name: str) -> torch.device:
    """`cuda`, `cuda:1` or `cpu` as a device of this machine; InputError where it has none."""
    match = re.fullmatch(r"(cpu|cuda)(?::([0-9]{1,3}))?", name.strip().lower())
    if match is None or (match[1] == "cpu" and match[2]):
        raise InputError(f"--device: '{name}' is not a device (valid: cpu, cuda, cuda:N)")
    if match[1] == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = ("this torch was built without CUDA" if torch.version.cuda is None
               else "no CUDA device is visible")
        raise InputError(f"--device: no '{name}' here, {why}; use --device cpu")
    index, count = int(match[2] or 0), torch.cuda.device_count()
    if index >= count:
        raise InputError(f"--device: no '{name}' here, there are {count} CUDA devices (from 0)")
    return torch.device("cuda", index)


def default_device() -> str:
    """`cuda` where there is one, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Marks on a device's timeline; seconds between them once it is read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[float | torch.cuda.Event] = []

    def mark(self) -> None:
        """Now, in the order of what was given to the device."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Time between each mark and the next."""
        synchronise(self.device)
        found = []
        for a, b in zip(self.marks, self.marks[1:], strict=False):
            if isinstance(a, torch.cuda.Event):
                assert isinstance(b, torch.cuda.Event)
                found.append(a.elapsed_time(b) * 1e-3)
            else:
                assert isinstance(b, float)
                found.append(b - a)
        return found


@lru_cache(maxsize=8)
def settle(device: torch.device, threads: int, seconds: float = SETTLING) -> None:
    """Keep a device busy until clocks and threads are where they stay; once a process and device.

    The first two seconds of a process ran 1.6 times slower (2 cores of an AMD Zen 3 in a virtual
    machine), evenly, so that neither a warm-up call nor the spread of the repeats showed it.
    """
    a = torch.randn(1024, 1024, device=device)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        a @ a
        synchronise(device)


def time_calls(call: Call, device: torch.device, repeats: int = 7, warmup: int = 2,
               budget: float = 10.0, prepare: Call | None = None) -> Timing:
    """Run `call` `warmup` times, then `repeats` times, each timed; `prepare` before each, untimed.

    Repeats stop early where they have taken `budget` seconds, but not before there are three.
    """
    seconds: list[float] = []
    for _ in range(warmup):
        if prepare is not None:
            prepare()
        call()
    synchronise(device)
    begin = time.perf_counter()
    while len(seconds) < repeats and not (len(seconds) >= FEWEST
                                          and time.perf_counter() - begin > budget):
        if prepare is not None:
            prepare()
            synchronise(device)
        watch = Stopwatch(device)
        watch.mark()
        call()
        watch.mark()
        seconds += watch.seconds()
    return Timing.of(seconds)


def _cpu_name() -> str:
    text = _read("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_clock() -> float | None:
    """Mean clock of the CPUs now [Hz], where the system says it."""
    found = [float(x) for x in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)$", _read("/proc/cpuinfo"),
                                          re.MULTILINE)]
    return 1e6 * sum(found) / len(found) if found else None


def _nvidia_smi(index: int) -> dict[str, str]:
    fields = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit",
              "temperature.gpu")
    try:
        text = subprocess.run(
            ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(fields)}",
             "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [v.strip() for v in text.strip().split(",")]
    return {k: v for k, v in zip(fields, values, strict=False) if v and not v.startswith("[")}


def environment(device: torch.device) -> dict[str, str | int | float | None]:
    """What a measurement ran on; None where the machine doesn't say. Clocks [Hz] are of now."""
    found: dict[str, str | int | float | None] = {
        "device": device.type,
        "device_name": (torch.cuda.get_device_name(device) if device.type == "cuda"
                        else _cpu_name()),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "driver": None,
        "threads": torch.get_num_threads(),
        "usable_cpus": usable_cpus(),
        "clock_hz": _cpu_clock() if device.type == "cpu" else None,
        "memory_clock_hz": None,
        "power_limit_w": None,
        "temperature_c": None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    if device.type == "cuda":
        smi = _nvidia_smi(device.index or 0)

        def number(key: str, unit: float) -> float | None:
            try:
                return float(smi[key]) * unit
            except (KeyError, ValueError):
                return None

        found |= {"driver": smi.get("driver_version"), "clock_hz": number("clocks.sm", 1e6),
                  "memory_clock_hz": number("clocks.mem", 1e6),
                  "power_limit_w": number("power.limit", 1.0),
                  "temperature_c": number("temperature.gpu", 1.0)}
    return found


def _cgroup_room() -> float:
    """Bytes that the limit of this process's control group leaves; infinite without one."""
    for most, used in (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
                       ("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                        "/sys/fs/cgroup/memory/memory.usage_in_bytes")):
        limit, usage = _read(most).strip(), _read(used).strip()
        if limit.isdigit() and usage.isdigit():
            return float(limit) - float(usage)
    return float("inf")


def free_memory(device: torch.device) -> float:
    """Bytes that can be allocated on a device now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(device)[0])
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    if match:
        return min(float(match[1]) * 1024.0, _cgroup_room())
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return min(float(pages * size), _cgroup_room())


__all__ = ["Stopwatch", "Timing", "default_device", "environment", "find_device", "free_memory",
           "set_threads", "settle", "synchronise", "time_calls", "usable_cpus"]
