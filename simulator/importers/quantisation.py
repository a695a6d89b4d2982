"""Quantisation blocks to number formats by class of weights.

Every tool writes its own block: some name bits, some an algorithm, some only a method, and the
parts they leave at 16 bits are listed by module names, globs or regular expressions.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import InputError, nearest
from simulator.formats import number_format

Block = Mapping[str, Any]

PROJECTIONS = ("attention", "ffn", "experts", "shared_experts", "ssm")

# Module names that stand for a class; `{i}` is the layer. One match keeps the class at 16 bits.
_MODULES: dict[str, tuple[str, ...]] = {
    "attention": ("layers.{i}.self_attn.q_proj", "layers.{i}.self_attn.o_proj",
                  "layers.{i}.attention.wqkv", "layers.{i}.attn.q_proj"),
    "ffn": ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj", "layers.{i}.mlp.down_proj",
            "layers.{i}.feed_forward.gate_proj"),
    "experts": ("layers.{i}.mlp.experts.0.gate_proj", "layers.{i}.mlp.experts.gate_up_proj",
                "layers.{i}.feed_forward.experts.0.gate_proj",
                "layers.{i}.block_sparse_moe.experts.0.w1"),
    "shared_experts": ("layers.{i}.mlp.shared_experts.gate_proj",
                       "layers.{i}.mlp.shared_expert.gate_proj",
                       "layers.{i}.feed_forward.shared_expert.gate_proj"),
    "ssm": ("layers.{i}.linear_attn.in_proj_qkvz", "layers.{i}.mixer.in_proj",
            "layers.{i}.mamba.in_proj"),
}  # fmt: skip


@dataclass(frozen=True)
class Quantisation:
    """Formats by class, the cache's format, and what was inferred on the way."""

    weights: str
    kept: tuple[str, ...] = ()
    kv: str | None = None
    head: str | None = None
    embedding: str | None = None
    only: tuple[str, ...] | None = None
    by_role: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _plain_name(name: str) -> str:
    return re.sub(r"^(?:(?:model|language_model|text_model|transformer)\.)+", "", name)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a module name is meant by a pattern: a regular expression, a glob, or its parts."""
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error:
            return lambda name: False
        return lambda name: expression.match("model." + name) is not None
    plain = _plain_name(pattern)
    if not plain:
        return lambda name: False
    if "*" in plain or "?" in plain:
        globs = [re.compile(fnmatch.translate(g)) for g in (plain, plain + ".*")]
        return lambda name: any(g.match(name) for g in globs)
    return lambda name: f".{plain}." in f".{name}."


def _texts(block: Block, where: str, *keys: str) -> list[str]:
    found: list[str] = []
    for key in keys:
        value = block.get(key)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise InputError(f"{where}: {key}: {str(value)[:60]!r} is not a list of module names")
        found += value
    return found


def kept_classes(patterns: Sequence[str], layers: int) -> tuple[tuple[str, ...], list[str]]:
    """Classes that the patterns keep at 16 bits in most layers; a note where only in some."""
    if not patterns:
        return (), []
    kept, notes = [], []
    matchers = [_matcher(pattern) for pattern in dict.fromkeys(patterns)]
    for name, modules in _MODULES.items():
        hits = sum(any(matches(m.format(i=i)) for m in modules for matches in matchers)
                   for i in range(layers))
        if 2 * hits >= layers:
            kept.append(name)
        if 0 < hits < layers:
            rest = "all counted as such" if 2 * hits >= layers else "counted as quantised"
            notes.append(f"quantisation: {name} stays at 16 bits in {hits} of {layers} layers, "
                         f"{rest}")
    return tuple(kept), notes


def _bits(block: Block, where: str, *keys: str) -> int:
    for key in keys:
        value = block.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 < value <= 16:
            raise InputError(f"{where}: {key}: {value!r} is not a number of bits from 2 to 8")
        return value
    raise InputError(f"{where}: '{keys[0]}' is missing")


def _group(block: Block, where: str, *keys: str) -> int | None:
    for key in keys:
        value = block.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < -1 or value == 0:
            raise InputError(f"{where}: {key}: {value!r} is not a group size")
        return None if value == -1 else value
    return None


def _grouped(bits: int, group: int | None, zeros: int) -> tuple[str, list[str]]:
    if group is None:
        if bits == 8:
            return "int8", []
        return f"int{bits}-g4096", ["quantisation: one scale a channel, counted as groups of 4096"]
    return f"int{bits}-g{group}" + (f"-z{zeros}" if zeros else ""), []


def _awq(block: Block, where: str, layers: int) -> Quantisation:
    bits = _bits(block, where, "bits", "w_bit")
    group = _group(block, where, "group_size", "q_group_size")
    name, notes = _grouped(bits, group, bits if block.get("zero_point", True) else 0)
    return Quantisation(name, notes=tuple(notes))


def _gptq(block: Block, where: str, layers: int) -> Quantisation:
    bits = _bits(block, where, "bits")
    zeros = 0 if block.get("sym", True) else bits
    name, notes = _grouped(bits, _group(block, where, "group_size"), zeros)
    if block.get("desc_act"):
        notes.append("quantisation: desc_act keeps a 4-byte group index a row, not counted")
    head = name if block.get("lm_head") else None
    return Quantisation(name, head=head, notes=tuple(notes))


def _fp8(block: Block, where: str, layers: int) -> Quantisation:
    size = block.get("weight_block_size")
    if size is None:
        return Quantisation("fp8")
    if size == [128, 128]:
        return Quantisation("fp8-block")
    if size == [1, 32]:
        return Quantisation("mxfp8")
    raise InputError(f"{where}: weight_block_size: {size!r} is not supported (valid: null, "
                     "[128, 128], [1, 32])")


def _fbgemm(block: Block, where: str, layers: int) -> Quantisation:
    if block.get("modules_to_not_convert") is not None:
        return Quantisation("fp8-channel")
    return Quantisation("fp8-channel", kept=("attention",), notes=(
        "quantisation: fbgemm_fp8 without a list of modules, attention taken to stay at 16 bits "
        "(so Meta's recipe; it also keeps the first and last layer, which is not counted)",))


def _mxfp4(block: Block, where: str, layers: int) -> Quantisation:
    return Quantisation("mxfp4", only=("experts",))


def _bitsandbytes(block: Block, where: str, layers: int) -> Quantisation:
    if block.get("load_in_4bit") or block.get("_load_in_4bit"):
        kind = block.get("bnb_4bit_quant_type", "fp4")
        double = bool(block.get("bnb_4bit_use_double_quant"))
        notes = () if kind == "nf4" else (
            f"quantisation: bitsandbytes {kind} takes the space of nf4",)
        return Quantisation("nf4-double" if double else "nf4", notes=notes)
    if block.get("load_in_8bit") or block.get("_load_in_8bit"):
        return Quantisation("int8")
    raise InputError(f"{where}: bitsandbytes without load_in_4bit or load_in_8bit")


def _mlx(block: Block, where: str, layers: int) -> Quantisation:
    bits, group = _bits(block, where, "bits"), _group(block, where, "group_size") or 64
    mode = block.get("mode")
    name = mode if mode in ("mxfp4", "nvfp4", "mxfp8") else f"int{bits}-g{group}-z16"
    return Quantisation(name, head=name, embedding=name)


def _scheme(weights: Any, form: str, where: str) -> str:
    """Format of one group of compressed-tensors (or modelopt) weights."""
    if not isinstance(weights, dict):
        raise InputError(f"{where}: weights: {weights!r} is not a mapping")
    bits, kind = _bits(weights, where, "num_bits"), weights.get("type", "int")
    group = _group(weights, where, "group_size")
    if kind == "float" and bits == 8:
        strategy = weights.get("strategy", "tensor")
        return {"channel": "fp8-channel", "block": "fp8-block"}.get(str(strategy), "fp8")
    if kind == "float" and bits == 4:
        return "mxfp4" if "mxfp4" in form or group == 32 else "nvfp4"
    if kind == "int":
        zeros = 0 if weights.get("symmetric", True) else bits
        return _grouped(bits, group, zeros)[0]
    raise InputError(f"{where}: weights of type '{kind}' with {bits} bits are not supported")


def _compressed(block: Block, where: str, layers: int) -> Quantisation:
    groups = block.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise InputError(f"{where}: 'config_groups' is missing")
    formats: list[tuple[str, list[str]]] = []
    for key, group in groups.items():
        place = f"{where}: config_groups.{key}"
        if not isinstance(group, dict):
            raise InputError(f"{place}: {group!r} is not a mapping")
        form = str(group.get("format") or block.get("format") or "")
        formats.append((_scheme(group.get("weights"), form, place),
                        _texts(group, place, "targets")))
    kv = _kv_format(block, where)
    names = {name for name, _ in formats}
    everything = all(set(targets) <= {"Linear"} for _, targets in formats)
    if len(names) == 1 and everything:
        return Quantisation(names.pop(), kv=kv)
    by_role, notes = _grouped_roles(formats, layers)
    rest = _widest(by_role.values() or names)
    return Quantisation(rest, kv=kv, by_role=by_role, head=by_role.get("head"),
                        kept=tuple(r for r in PROJECTIONS if by_role and r not in by_role),
                        notes=tuple(notes))


# Modules by which the groups of compressed-tensors are told apart, beside those above.
_TARGETS: dict[str, tuple[str, ...]] = {
    **_MODULES,
    "attention": tuple(f"layers.{{i}}.self_attn.{part}_proj" for part in "qkvo"),
    "ffn": _MODULES["ffn"][:3],
    "experts": ("layers.{i}.mlp.experts.0.gate_proj", "layers.{i}.mlp.experts.0.up_proj",
                "layers.{i}.mlp.experts.0.down_proj"),
    "head": ("lm_head",),
}  # fmt: skip
_CLASSES = (("expert", "experts"), ("mlp", "ffn"), ("attention", "attention"))


def _widest(names: Iterable[str]) -> str:
    return max(sorted(names), key=lambda n: number_format(n).bits)


def _meant(target: str, role: str, module: str) -> int:
    """How firmly a target means a module: 2 by name, 1 by the class that holds it, 0 not."""
    if target == "Linear":
        return 0 if role == "head" else 1
    if not target.startswith("re:") and "." not in target and target[:1].isupper():
        held = next((r for word, r in _CLASSES if word in target.lower()), None)
        return 2 if held == role else 0
    return 2 if _matcher(target)(module) else 0


def _grouped_roles(formats: Sequence[tuple[str, list[str]]],
                   layers: int) -> tuple[dict[str, str], list[str]]:
    """Format of each class by the groups' targets; the widest where a class has several."""
    by_role: dict[str, str] = {}
    notes: list[str] = []
    used: set[str] = set()
    for role, modules in _TARGETS.items():
        names: set[str] = set()
        for module in (m.format(i=i) for m in modules for i in range(layers)):
            ranked = [(max((_meant(t, role, module) for t in targets), default=0), name)
                      for name, targets in formats]
            rank, name = max(ranked, key=lambda pair: pair[0])
            if rank:
                names.add(name)
        if names:
            by_role[role] = _widest(names)
            used |= names
        if len(names) > 1:
            notes.append(f"quantisation: {role} is in groups of {', '.join(sorted(names))}; the "
                         "widest is counted for all of it")
    lost = {name for name, _ in formats} - used
    if lost:
        widest = _widest(name for name, _ in formats)
        notes.append(f"quantisation: groups of {', '.join(sorted(lost))} target no known part; "
                     f"the widest format, {widest}, is counted for all")
        by_role = dict.fromkeys([r for r in by_role if r != "head"] or PROJECTIONS, widest)
    return by_role, notes


_ALGORITHMS = {"fp8": "fp8", "nvfp4": "nvfp4", "fp8_pb_wo": "fp8-block", "w4a16_awq":
               "int4-g128", "int4_awq": "int4-g128", "w4a8_awq": "int4-g128", "mxfp4": "mxfp4",
               "int8_sq": "int8", "w8a8_sq_per_channel": "int8", "w4a16_mxfp4": "mxfp4",
               "w4a8_mxfp4_fp8": "mxfp4", "fp8_per_channel_per_token": "fp8-channel"}


def _modelopt(block: Block, where: str, layers: int) -> Quantisation:
    algorithm = block.get("quant_algo")
    if algorithm is None:
        if block.get("config_groups"):
            return _compressed(block, where, layers)
        raise InputError(f"{where}: 'quant_algo' is missing")
    name = _ALGORITHMS.get(str(algorithm).lower())
    if name is None:
        raise InputError(f"{where}: quant_algo: unknown algorithm '{algorithm}'"
                         f"{nearest(str(algorithm), _ALGORITHMS)}")
    return Quantisation(name, kv=_kv_format(block, where))


_KV = {"fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}


def _kv_format(block: Block, where: str) -> str | None:
    scheme = block.get("kv_cache_quant_algo") or block.get("kv_cache_scheme")
    if scheme is None:
        return None
    if isinstance(scheme, dict):
        bits = _bits(scheme, f"{where}: kv_cache_scheme", "num_bits")
        return "fp8" if bits == 8 and scheme.get("type") == "float" else f"int{bits}"
    name = _KV.get(str(scheme).lower())
    if name is None:
        raise InputError(f"{where}: kv_cache_quant_algo: unknown format '{scheme}'"
                         f"{nearest(str(scheme), _KV)}")
    return name


METHODS: dict[str, Callable[[Block, str, int], Quantisation]] = {
    "awq": _awq, "gptq": _gptq, "fp8": _fp8, "fbgemm_fp8": _fbgemm, "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes, "compressed-tensors": _compressed, "modelopt": _modelopt,
    "modelopt_fp4": _modelopt, "mlx": _mlx, "auto-gptq": _gptq, "gptq_marlin": _gptq,
    "awq_marlin": _awq, "compressed_tensors": _compressed,
}  # fmt: skip


# Keys that give a method away where the block doesn't name it, in order.
_SIGNS = (("quant_algo", "modelopt"), ("load_in_4bit", "bitsandbytes"),
          ("load_in_8bit", "bitsandbytes"), ("config_groups", "compressed-tensors"),
          ("w_bit", "awq"), ("q_group_size", "awq"), ("desc_act", "gptq"), ("sym", "gptq"))


def names_method(block: Block) -> bool:
    """Whether a block names its method or has a key that gives it away."""
    return any(block.get(key) is not None for key in ("quant_method", *(k for k, _ in _SIGNS)))


def method_of(block: Block, where: str) -> str:
    """The method a block names, or that its keys give away."""
    method = block.get("quant_method")
    if method is None:
        method = next((name for key, name in _SIGNS if block.get(key) is not None), None)
    if method is None:
        raise InputError(f"{where}: 'quant_method' is missing (valid: {', '.join(METHODS)})")
    if not isinstance(method, str) or method not in METHODS:
        known = nearest(str(method), METHODS) or f" (valid: {', '.join(METHODS)})"
        raise InputError(f"{where}: quant_method: unknown quantisation '{method}'{known}; remove "
                         "the block and set formats in YAML instead")
    return method


_LISTS = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers",
          "llm_int8_skip_modules", "modules_to_not_quantize")


def quantisation_of(block: Block, layers: int, where: str) -> Quantisation:
    """What a quantisation block says about each class of weights."""
    method = method_of(block, where)
    found = METHODS[method](block, where, layers)
    kept, notes = kept_classes(_texts(block, where, *_LISTS), layers)
    return Quantisation(
        weights=found.weights, kept=tuple(dict.fromkeys((*found.kept, *kept))), kv=found.kv,
        head=found.head, embedding=found.embedding, only=found.only, by_role=found.by_role,
        notes=(f"quantisation: {method}, weights as {found.weights}", *found.notes, *notes))


def formats_of(found: Quantisation | None, base: str, present: frozenset[str]) -> dict[str, str]:
    """`Model.formats`: the quantised projections, all else in the checkpoint's own format."""
    if found is None:
        if number_format(base).bits == 16:
            return {"weights": base}
        return {"weights": base,
                **dict.fromkeys(("embedding", "head", "norm", "router", "other"), base)}
    formats = {"weights": base if found.only else found.weights}
    for name in PROJECTIONS:
        if name in present:
            quantised = name not in found.kept and (found.only is None or name in found.only)
            told = found.by_role.get(name, found.weights)
            formats[name] = told if quantised else base
    formats = {k: v for k, v in formats.items() if k == "weights" or v != formats["weights"]}
    return {**formats, "embedding": found.embedding or base, "head": found.head or base,
            "norm": base, "router": base}
