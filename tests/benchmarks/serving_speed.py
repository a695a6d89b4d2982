"""How fast the serving simulator is: `python tests/benchmarks/serving_speed.py [TRACE]`.

CPU seconds of one process. `simulate` is everything that `tokline simulate` does but the printing:
building the surface, finding the largest rate, the two runs at the ends of the range.
"""

from __future__ import annotations

import sys
import time
import tracemalloc

import numpy as np

from simulator import Deployment
from simulator.serving.policy import Policy, kv_memory
from simulator.serving.requests import Requests, requests_of
from simulator.serving.run import Setup, serve
from simulator.serving.simulate import fitting, largest_rate, simulate
from simulator.serving.surface import StepSurface
from simulator.serving.traces import load_trace


def poisson(n: int, rate: float, prompt: int = 512, output: int = 128) -> Requests:
    """n requests of one length."""
    gaps = np.random.default_rng(0).exponential(1.0 / rate, n)
    return requests_of(np.cumsum(gaps), np.full(n, prompt), np.full(n, output))


def setup_of(d: Deployment, r: Requests, scheduler: str | None = None) -> Setup:
    """An engine as `simulate` makes it."""
    policy = Policy.of(d, scheduler)
    memory = kv_memory(d, policy, float(r.input.mean()), float(r.output.mean()))
    assert memory is not None
    return Setup(StepSurface(d, float((r.input + r.output).max())), policy, memory,
                 d.engine.request_time)


def measure(n: int = 100_000, trace: str | None = None) -> dict[str, float]:
    """Requests a CPU second, by case."""
    d, found = Deployment.of("llama-2-7b", "a100-sxm4-80gb"), {}
    for scheduler in ("chunked", "prefill-first"):
        setup = setup_of(d, poisson(10, 1.0), scheduler)
        rate = 0.7 * largest_rate(setup, poisson(100, 1.0))
        r = poisson(n, rate)
        began = time.process_time()
        serve(setup, r)
        found[f"{scheduler}, 0.7 of {rate / 0.7:.1f}/s"] = n / (time.process_time() - began)
        if scheduler == "chunked":
            began = time.process_time()
            simulate(d, r)
            found["simulate(), with ranges"] = n / (time.process_time() - began)
    if trace is not None:
        for model, hardware in (("llama-3.1-8b", "h100-sxm5-80gb"), ("llama-2-7b",
                                                                     "a100-sxm4-80gb")):
            d = Deployment.of(model, hardware)
            r = load_trace(trace)
            setup = setup_of(d, r)
            r, _ = fitting(r, d, setup.memory)
            for scale in (0.5, 1.0, 2.0):
                x = r.at_rate(r.rate * scale)
                began = time.process_time()
                serve(setup, x)
                found[f"trace x{scale:g}, {model}"] = len(r) / (time.process_time() - began)
            began = time.process_time()
            simulate(d, r)
            found[f"trace, simulate(), {model}"] = len(r) / (time.process_time() - began)
    return found


def bytes_a_request(n: int = 50_000) -> float:
    """Memory that a run holds when it is done, beside its requests, for each of them."""
    d = Deployment.of("llama-2-7b", "a100-sxm4-80gb")
    setup = setup_of(d, poisson(10, 1.0))
    serve(setup, poisson(2_000, 10.0))
    r = poisson(n, 10.0)
    tracemalloc.start()
    run = serve(setup, r)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(run.finish) == n
    return (held + r.arrival.nbytes + r.input.nbytes + r.output.nbytes) / n


if __name__ == "__main__":
    for name, value in measure(trace=sys.argv[1] if len(sys.argv) > 1 else None).items():
        print(f"{name:<40} {value:>10,.0f} requests/s")
    print(f"{'held for each finished request':<40} {bytes_a_request():>10,.0f} bytes")
