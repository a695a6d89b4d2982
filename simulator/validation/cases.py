"""A measured row as something to predict: which deployment, which workload, which figure.

Phases: batch-1 decode on one device; prefill of one pass; static batches; the largest throughput,
where memory sets the batch; TPOT and TTFT at a fixed concurrency; and, outside the pinned six,
short prefills, memory, and metrics that are none of these.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from simulator.deployment import Deployment, Parallelism, Workload
from simulator.efficiency import SHORT_PROMPT
from simulator.errors import InputError
from simulator.memory import memory, weight_bytes
from simulator.network import link_domain
from simulator.parameters import parameters_total
from simulator.request import estimate
from simulator.sharding import tensor_parallel_degrees
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import Attention, Mla, Model
from simulator.validation import names
from simulator.validation.measurements import METRICS, SIZES, Row
from simulator.validation.names import UnknownError
from simulator.validation.notes import all_at_once, check_notes, check_processor, says_served
from simulator.validation.plausible import (
    check_cache,
    check_degrees,
    check_metric,
    check_size,
)

PHASES = ("batch1_decode", "prefill", "static_throughput", "max_throughput", "tpot", "ttft")
OTHER_PHASES = ("prefill_short", "memory", "other")
# Formats that are not a quantisation.
WIDE = ("fp16", "bf16", "fp32")
# What a source means that prints no lengths beside a batch-1 decode rate: a short chat.
UNSTATED = 128.0
# Figures of a server at a fixed concurrency.
SERVED_FIGURES = {"throughput_out_tok_s": "out_served", "throughput_total_tok_s": "total_served",
                  "req_s": "requests_served", "decode_tok_s_total": "rates_served"}
# Makers whose software counts tensor parallel degrees in cores, several to a device.
IN_CORES = ("AWS",)
# What is taken for granted where more sequences are served than tensor parallel caches hold.
APART = "attention taken as data parallel, since the cache fits no other way"


@dataclass(frozen=True, slots=True)
class Case:
    """Row `index` of a file, mapped.

    setup    what makes the deployment: rows that share it are predicted together
    phase    which of the phases it belongs to
    figure   which quantity of a prediction it is compared with
    batch    concurrent sequences of the deployment; None: what fits in memory
    assumed  what the source left open, in words
    rounds   requests that each user sends, where the benchmark is known
    held     decode steps that its server holds a request back, in the mean
    """

    index: int
    row: Row
    setup: Setup
    phase: str
    figure: str
    batch: float | None
    input: float
    output: float
    assumed: str = ""
    rounds: float | None = None
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """Names that make a deployment; hashable, so that equal ones are built once.

    pooled   devices behind each rank, where heads don't divide over all devices
    copies   times that the KV cache is read beyond once, where more cores than KV heads hold it
    """

    model: str
    hardware: str
    engine: str
    weights: str | None
    activations: str
    kv: str | None
    head: str | None
    tp: int
    pp: int
    ep: int
    dp: int
    pooled: float = 1.0
    copies: float = 0.0

    @property
    def devices(self) -> float:
        """Devices of the whole deployment."""
        return self.tp * self.pp * self.dp * self.pooled

    def deployment(self) -> Deployment:
        """The deployment; InputError where it isn't possible."""
        hardware = names.hardware_of(self.hardware)
        if self.pooled != 1.0:
            hardware = pooled(hardware, self.pooled)
        host = names.host_of(self.hardware).get("host")
        if host is not None and not names.is_cpu(hardware):
            hardware = hardware.replace(host=host)
        engine = load_engine(self.engine)
        if self.copies:
            engine = engine.replace(cache_copies=engine.cache_copies + self.copies)
        formats = {} if self.head is None else {"head": self.head, "embedding": self.head}
        return Deployment(
            names.model_of(self.model)[0], hardware, engine,
            weights=self.weights, activations=self.activations, kv=self.kv, formats=formats,
            parallelism=Parallelism(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp))


def pooled(hardware: Hardware, times: float) -> Hardware:
    """A device as fast and as large as `times` devices."""
    fields = {name: value * times for name in hardware.__struct_fields__
              if (name.startswith(("peak_", "vector_", "memory_capacity"))
                  or name in ("memory_bandwidth", "link_bandwidth", "units"))
              and (value := getattr(hardware, name)) is not None}
    return hardware.replace(**fields)


def case_of(index: int, row: Row) -> Case:
    """The case of a row; UnknownError with the reason where it can't be one."""
    check_metric(row)
    check_notes(row)
    hardware = names.hardware_of(row.hardware)
    row = replace(row, n_devices=names.devices_of(row.hardware, row.n_devices))
    check_processor(row, hardware)
    model, ending = names.model_of(row.model)
    setup = _setup(row, hardware, model, ending)
    batch, given, rows_in, rows_out, assumed = _lengths(row)
    if batch is not None and "attn_dp" not in row.notes:
        stated, setup = setup, _attention_apart(setup, batch, max(rows_in, 1.0), max(rows_out, 1.0))
        if setup is not stated:
            assumed = f"{assumed}; {APART}".removeprefix("; ")
    check_size(row, setup.devices, model, batch, rows_in, rows_out)
    phase, figure = _phase(row, setup, batch, rows_in)
    if batch is None and phase != "max_throughput" and row.metric not in SIZES:
        raise UnknownError("batch or concurrency not stated")
    if not given and phase not in ("batch1_decode", "memory"):
        raise UnknownError("prompt or output length not stated")
    rounds, share = names.protocol_of(row.notes)
    if rounds is None and figure.endswith("_served") and all_at_once(row):
        rounds = 1.0
    return Case(index, row, setup, phase, figure, batch, max(rows_in * share, 1.0),
                max(rows_out * share, 1.0), assumed, rounds, names.held_steps(row))


def _lengths(row: Row) -> tuple[float | None, bool, float, float, str]:
    """(batch, whether the lengths are stated, input, output, what was assumed)."""
    batch = names.length_of(row.batch, "batch or concurrency")
    if batch is not None and batch < 1:
        raise UnknownError(f"batch or concurrency below 1: {row.batch}")
    given_in, given_out = names.length_of(row.input), names.length_of(row.output)
    pure_prefill = row.metric in ("prefill_ms", "prefill_tok_s", "ttft_ms")
    if given_out is None and pure_prefill:
        given_out = 1.0
    stated = given_in is not None and given_out is not None
    assumed = "" if stated else f"lengths not stated, {UNSTATED:.0f} + {UNSTATED:.0f} assumed"
    if not row.date and not row.version:
        assumed = f"{assumed}; engine version not stated".removeprefix("; ")
    if (row.n_devices or 1) > 1 and row.tp is None and row.pp is None:
        assumed = f"{assumed}; all devices share the model".removeprefix("; ")
    return (batch, stated, UNSTATED if given_in is None else given_in,
            UNSTATED if given_out is None else given_out, assumed)


def _attention_apart(setup: Setup, batch: float, prompt: float, output: float) -> Setup:
    """Data-parallel attention where the stated sequences fit no other way.

    Tensor parallel ranks hold the latent cache of MLA once each. Whoever serves more sequences than
    that leaves room for, spread over experts, has each rank attend to its own.
    """
    model = names.model_of(setup.model)[0]
    if setup.tp == 1 or setup.dp > 1 or setup.pp > 1 or not any(
            isinstance(g.mixer, Mla) for g in model.layers) or not load_engine(
            setup.engine).continuous:
        return setup
    apart = replace(setup, tp=1, dp=setup.tp, ep=setup.tp)
    try:
        room = [float(memory(s.deployment(), batch, prompt, output / 2.0).max_batch)
                for s in (setup, apart)]
    except InputError:
        return setup
    return apart if room[0] < batch and room[1] > room[0] else setup


def _phase(row: Row, setup: Setup, batch: float | None, prompt: float) -> tuple[str, str]:
    metric, engine = row.metric, load_engine(setup.engine)
    one = batch == 1 and setup.devices == 1
    told = says_served(row)
    online = engine.continuous or (engine.serves and told)
    if metric in SIZES:
        return "memory", metric
    if metric in ("prefill_ms", "prefill_tok_s"):
        return ("prefill" if prompt >= SHORT_PROMPT else "prefill_short"), metric
    if metric == "ttft_ms":
        if online and batch is not None and (batch > 1 or row.rate):
            return "ttft", "ttft_served"
        if batch is not None and batch > 1:
            return "ttft", "ttft_alone" if engine.prefills_alone else "prefill_ms"
        return ("prefill" if prompt >= SHORT_PROMPT else "prefill_short"), "ttft_ms"
    if metric in ("decode_tok_s_per_user", "tpot_ms"):
        if one:
            return "batch1_decode", metric
        served = {"tpot_ms": "tpot_served", "decode_tok_s_per_user": "rate_served"}
        return "tpot", served[metric] if online else metric
    if metric == "decode_tok_s_total" and one:
        return "batch1_decode", metric
    if batch is None or row.rate.lower().startswith(("inf", "offline")):
        return "max_throughput", metric
    rounds = names.protocol_of(row.notes)[0] or 1.0
    if online and (told or rounds > 1.0):
        return "static_throughput", SERVED_FIGURES[metric]
    return "static_throughput", metric


def rough_phase(row: Row) -> str:
    """Phase of a row that may not be mapped: what its metric and its batch tell."""
    metric = row.metric
    if metric not in METRICS:
        return "other"
    if metric in SIZES:
        return "memory"
    if metric in ("prefill_ms", "prefill_tok_s"):
        short = not isinstance(row.input, float) or row.input < SHORT_PROMPT
        return "prefill_short" if short else "prefill"
    single = row.batch in (1.0, None) and (row.n_devices or row.tp or 1) == 1
    if metric == "decode_tok_s_total" and single:
        return "batch1_decode"
    if metric == "ttft_ms":
        if row.batch not in (1.0, None) or row.rate:
            return "ttft"
        short = not isinstance(row.input, float) or row.input < SHORT_PROMPT
        return "prefill_short" if short else "prefill"
    if metric in ("decode_tok_s_per_user", "tpot_ms"):
        return "batch1_decode" if single else "tpot"
    if row.batch is None or row.rate.lower().startswith(("inf", "offline")):
        return "max_throughput"
    return "static_throughput"


def _setup(row: Row, hardware: Hardware, model: Model, ending: str) -> Setup:
    formats = names.formats_of(row.weights, ending)
    size = re.search(r"model_bytes=(\d+)", row.notes)
    weights: str | None = formats["weights"]
    if weights in (*WIDE, model.formats.get("experts")) and (
            model.formats.get("experts", "bf16") not in WIDE):
        weights = None    # as published: experts in fewer bits, the rest in 16
    elif size is not None:
        weights = f"mix-{round(8.0 * float(size.group(1)) / parameters_total(model), 3)}"
        formats = {"weights": weights, "activations": "fp16", "head": weights}
    native = model.formats.get("weights")
    if weights == "fp8" and native == "fp8-block":
        weights = native
    engine = names.engine_of(row.engine, row.version, row.date, row.hardware,
                             (row.n_devices or 1) > 1)
    profile = load_engine(engine)
    head = formats.get("head", weights if profile.quantised_head else None)
    tp, pp, ep, dp, times = _degrees(row, model, profile.splits == "layers")
    activations = _activations(formats, hardware)
    kv = names.kv_format_of(row.kv)
    if kv is None and activations in ("fp8", "nvfp4", "int8", "fp32"):
        kv = "fp8" if profile.fp8_kv and activations in ("fp8", "nvfp4") else "bf16"
    return Setup(row.model, row.hardware, engine, weights, activations, kv, head,
                 tp, pp, ep, dp, times, _copies(row, model, tp))


def _copies(row: Row, model: Model, tp: int) -> float:
    """Reads of the KV cache beyond those of `tp` ranks, where a degree counts cores.

    Every core holds whole KV heads: the 8 of Mistral lie on 24 cores three times, the 40 of
    Llama-2-13B are padded to 48.
    """
    heads = next((float(g.mixer.kv_heads) for g in model.layers
                  if isinstance(g.mixer, Attention)), 0.0)
    if not heads or row.tp is None or row.tp <= tp:
        return 0.0
    return row.tp * math.ceil(heads / row.tp) / max(heads, float(tp)) - 1.0


def _activations(formats: dict[str, str], hardware: Hardware) -> str:
    """Precision that the products run at: the format's own, where the device has a unit for it."""
    own = formats["activations"]
    eight: tuple[str, ...] = () if own == "nvfp4" else ("fp8",)
    for name in (own, *eight, "fp16", "bf16", "fp32"):
        attribute = {"nvfp4": "peak_fp4"}.get(name, f"peak_{name}")
        if getattr(hardware, attribute, None) is not None:
            return name
    return "bf16"


def _degrees(row: Row, model: Model, layers: bool) -> tuple[int, int, int, int, float]:
    """(tp, pp, ep, dp, devices behind a rank)."""
    devices = row.n_devices
    check_degrees(row)
    pp = max(row.pp or 1, 1)
    if devices is None:
        devices = max(row.tp or 1, 1) * pp
    if layers:
        return 1, devices, 1, 1, 1.0
    stage = max(devices // pp, 1)
    tp = min(row.tp or stage, stage)
    dp = max(devices // (tp * pp), 1)
    if row.metric not in ("tpot_ms", "ttft_ms") and dp > 1 and (row.ep or 1) <= 1:
        dp = dp if row.tp else 1
    ep = row.ep if row.ep and row.ep > 1 else 1
    times, whole = 1.0, tp
    hardware = names.hardware_of(row.hardware)
    if (row.tp or 0) > devices:
        if hardware.vendor not in IN_CORES:
            raise UnknownError(f"tp {row.tp} is more than the {devices} devices stated")
        # Counted in cores: several share a device, and the heads are padded to them.
        valid = [d.tp for d in tensor_parallel_degrees(model, devices // pp) if d.valid]
        tp = max(valid, default=1)
        times = devices / (tp * pp * dp)
    domain = link_domain(hardware) or tp
    if ep > 1 and tp > domain >= tp // ep and tp % ep == 0:
        raise UnknownError(f"tp {tp} is more than the {domain} devices that the link joins: "
                           "printed as tp x ep?")
    if (tp * dp) % ep:
        raise UnknownError(f"ep {ep} doesn't divide tp {tp} x dp {dp}")
    if tp * pp * dp * times != devices:
        raise UnknownError(f"tp {whole} x pp {pp} doesn't make the {devices} devices stated")
    return tp, pp, ep, dp, times


def cases_of(rows: list[Row]) -> tuple[list[Case], dict[int, str]]:
    """Cases of the rows that can be mapped, and the reason for each of the others."""
    cases: list[Case] = []
    missing: dict[int, str] = {}
    latencies = {_run(row) for row in rows if row.metric in ("tpot_ms", "ttft_ms")}
    known: dict[Setup, str] = {}
    for index, row in enumerate(rows):
        try:
            case = case_of(index, row)
            if case.setup not in known:
                known[case.setup] = _refusal(case.setup)
            if known[case.setup]:
                raise UnknownError(known[case.setup])
            check_cache(case.setup.deployment(), case.input + case.output)
            if _run(row) in latencies:
                case = _beside_latencies(case)
        except UnknownError as error:
            missing[index] = str(error)
        else:
            cases.append(case)
    return cases, missing


def _run(row: Row) -> tuple[object, ...]:
    """What figures of one run have in common."""
    return (row.group, row.engine, row.version, row.n_devices, row.weights, row.kv, row.tp, row.pp,
            row.ep, row.batch, row.rate, row.input, row.output)


def _beside_latencies(case: Case) -> Case:
    """The throughput of a run whose TTFT or TPOT are printed too is of the same users."""
    if (case.phase != "static_throughput" or case.figure not in SERVED_FIGURES
            or case.rounds == 1.0 or not load_engine(case.setup.engine).continuous):
        return case
    return replace(case, figure=SERVED_FIGURES[case.figure])


def _refusal(setup: Setup) -> str:
    try:
        d = setup.deployment()
        if float(weight_bytes(d)) > d.hardware.memory_capacity:
            return "the weights alone exceed the memory of the devices stated"
        domain = link_domain(d.hardware)
        if domain is not None and d.devices > domain:
            estimate(d, Workload(1.0, 1.0, 2.0))    # groups may reach beyond the link, or may not
    except InputError as error:
        if "no scale-out link" in str(error):
            return (f"what joins {d.devices} of {d.hardware.name} isn't known: sockets of a board, "
                    "or machines")
        return f"deployment not possible: {error}"
    return ""


__all__ = ["OTHER_PHASES", "PHASES", "Case", "Setup", "case_of", "cases_of",
           "rough_phase"]
