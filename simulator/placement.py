"""What must go elsewhere for the rest to fit: the least share into a farther memory, or the fewest
devices.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.memory import memory
from simulator.offload import Offload
from simulator.specs.model import Moe

# What goes first where several may: experts are read least, the KV cache most at long contexts.
ORDER = ("experts", "weights", "kv")
_STEPS = 40


def has_experts(d: Deployment) -> bool:
    """Whether a model has routed experts."""
    return any(isinstance(g.ffn, Moe) for g in d.model.layers)


def _with(d: Deployment, name: str, share: float) -> Deployment:
    return d.replace(offload=(d.offload or Offload()).replace(**{name: share}))


def _fits_near(d: Deployment, w: Workload) -> bool:
    """Whether the near memory has the room; a far memory that is too small is another matter."""
    assert d.offload is not None
    roomy = d.replace(offload=d.offload.replace(capacity=float("inf")))
    return bool(memory(roomy, w.batch, w.input, w.output).fits)


def least_share(d: Deployment, w: Workload, name: str) -> float:
    """Smallest share of `name` in the far memory with which the near one fits; 1 if none does."""
    if _fits_near(_with(d, name, 0.0), w):
        return 0.0
    low, high = 0.0, 1.0
    if not _fits_near(_with(d, name, 1.0), w):
        return 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if _fits_near(_with(d, name, middle), w) else (middle, high)
    return high


def placed(d: Deployment, w: Workload, far: Offload, automatic: Iterable[str] = ()) -> Deployment:
    """The deployment with `far`, its `automatic` shares just large enough, one after another.

    Where nothing needs to lie far, nothing does.
    """
    wanted = set(automatic)
    if ("experts" in wanted or far.experts) and not has_experts(d):
        raise InputError(f"offload-experts: {d.model.name} has no routed experts")
    found = d.replace(offload=far)
    for name in ORDER:
        if name in wanted:
            found = _with(found, name, least_share(found, w, name))
    return found if found.offload is not None and found.offload.any else d


def fewest_devices(d: Deployment, w: Workload, most: int = 1024) -> Deployment | None:
    """The smallest tp x pp of at most `most` devices that fits, as advice names it; None: none."""
    from simulator.advice import changed_stages

    return next((c.deployment for c in changed_stages(d, w, most)), None)
