"""A decoder as counted layer groups: what is computed and what must be kept, not how fast.

A layer is a token mixer (attention of some kind, a state-space layer, or none) and a feed-forward
part (dense, experts, or none). Identical layers are one group with a count. Everything else about
a model is a handful of tables and flags, so a new model is one YAML file and no code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from simulator.errors import InputError, nearest
from simulator.formats import number_format
from simulator.specs.sourced import CONFIDENCES, Provenance, parse_word
from simulator.specs.strict_yaml import load_yaml

Positive = Annotated[int, Meta(ge=1, le=10**12)]
Natural = Annotated[int, Meta(ge=0, le=10**15)]
QK_NORMS = Literal["head", "full"]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all model parts: frozen, strict, and copied with `replace`."""

    def replace(self, **fields: Any) -> Any:
        """A copy with some fields set; a number may be an array."""
        known = self.__struct_fields__
        for key in fields:
            if key not in known:
                raise InputError(f"{type(self).__name__}: unknown field '{key}'"
                                 f"{nearest(key, known)}")
        return msgspec.structs.replace(self, **fields)


class Attention(Spec, frozen=True, kw_only=True, tag_field="kind", tag="attention"):
    """Softmax attention: MHA (kv_heads = heads), GQA, or MQA (kv_heads = 1).

    window           sliding window: a token sees itself and the window - 1 before it
    chunk            chunked attention: a token sees its own chunk only
    value_dim        head size of V where it differs from that of Q and K
    qk_norm          RMS norm of q and k: per head, or over the full projection
    output_gate      q_proj is twice as wide, half of it gates the output
    shares_kv        reuses the KV cache of an earlier layer: no K, V projection, no cache
    keys_are_values  no V projection; K and V are still both cached
    cross            attends to an image, not to the text: no text KV cache
    input_width      width of the input where it isn't the hidden size
    sinks            one learned sink logit per head
    """

    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    value_dim: Positive | None = None
    window: Positive | None = None
    chunk: Positive | None = None
    rope: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QK_NORMS | None = None
    output_gate: bool = False
    sinks: bool = False
    shares_kv: bool = False
    keys_are_values: bool = False
    cross: bool = False
    input_width: Positive | None = None

    @property
    def values(self) -> int:
        """Head size of V."""
        return self.value_dim if self.value_dim is not None else self.head_dim


class Indexer(Spec, frozen=True, kw_only=True):
    """Sparse attention's index (DeepSeek-V3.2): scores all keys, attends to the best `top_k`."""

    heads: Positive
    head_dim: Positive
    top_k: Positive


class Mla(Spec, frozen=True, kw_only=True, tag_field="kind", tag="mla"):
    """Multi-head latent attention: one latent of kv_rank + rope_dim values a token is cached."""

    heads: Positive
    q_rank: Positive | None = None
    kv_rank: Positive
    nope_dim: Positive
    rope_dim: Positive
    value_dim: Positive
    qkv_bias: bool = False
    output_bias: bool = False
    indexer: Indexer | None = None


class Mamba(Spec, frozen=True, kw_only=True, tag_field="kind", tag="mamba"):
    """Mamba (selective state space): fixed state inner x state and conv columns a sequence.

    dt_heads  heads that share one step size and one decay (PLaMo 2), where a channel has not its
              own
    """

    inner: Positive
    state: Positive
    conv: Positive
    dt_rank: Positive
    dt_heads: Positive | None = None
    conv_bias: bool = True
    projection_bias: bool = False
    inner_norms: bool = False


class Mamba2(Spec, frozen=True, kw_only=True, tag_field="kind", tag="mamba2"):
    """Mamba-2 (state-space duality): state heads x head_dim x state."""

    heads: Positive
    head_dim: Positive
    state: Positive
    groups: Positive
    conv: Positive
    conv_bias: bool = True
    projection_bias: bool = False
    gated_norm: bool = True


class GatedDelta(Spec, frozen=True, kw_only=True, tag_field="kind", tag="gated_delta"):
    """Gated delta-rule linear attention: state value_heads x key_dim x value_dim."""

    key_heads: Positive
    value_heads: Positive
    key_dim: Positive
    value_dim: Positive
    conv: Positive


class ShortConv(Spec, frozen=True, kw_only=True, tag_field="kind", tag="short_conv"):
    """Gated short convolution (LFM2): only the last conv columns are kept."""

    conv: Positive
    bias: bool = False


class Dense(Spec, frozen=True, kw_only=True, tag_field="kind", tag="dense"):
    """MLP: three matrices when gated (SwiGLU), two when not."""

    width: Positive
    gated: bool = True
    bias: bool = False


class Moe(Spec, frozen=True, kw_only=True, tag_field="kind", tag="moe"):
    """Routed experts of `width`, `top_k` of `experts` a token, beside shared ones read always.

    shared_width  summed width of the shared experts
    shared_gate   a sigmoid gate of one column on the shared expert
    latent        width the experts work in where it isn't the hidden size
    dense_width   a dense MLP that runs beside the experts
    """

    experts: Positive
    top_k: Positive
    width: Positive
    gated: bool = True
    shared_width: Natural = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    latent: Positive | None = None
    dense_width: Natural = 0


class Extra(Spec, frozen=True, kw_only=True):
    """Tensors that no field describes, counted so that parameters are exact.

    elements  values in one layer (or once, at the model's level)
    streamed  read in each step (False: a table that is only looked up)
    """

    name: str
    elements: Natural
    streamed: bool = True


Mixer = Attention | Mla | Mamba | Mamba2 | GatedDelta | ShortConv
FeedForward = Dense | Moe


class LayerGroup(Spec, frozen=True, kw_only=True):
    """`count` identical layers.

    norms     hidden-wide norms in a layer (2; 1 in a parallel block; 4 in Gemma 2)
    parallel  attention and MLP both read the same norm and add to the same residual
    distinct  sets of weights where layers share them (Zamba 2); all layers are computed
    """

    count: Positive
    mixer: Mixer | None = None
    ffn: FeedForward | None = None
    norms: Natural = 2
    parallel: bool = False
    distinct: Positive | None = None
    extra: tuple[Extra, ...] = ()


NORMS = Literal["rms", "layer", "layer-no-bias", "none"]
FORMAT_CLASSES = ("weights", "attention", "ffn", "experts", "shared_experts", "ssm", "router",
                  "norm", "embedding", "head", "other")


class Model(Spec, frozen=True, kw_only=True):
    """A decoder-only transformer or hybrid. Counts are of the text part.

    vocabulary       rows of the embedding; output_vocabulary: rows of the head where they differ
    positions        longest context [tokens]
    tied_embeddings  one matrix serves as embedding and as head: stored once, still multiplied
    learned_positions  rows of a learned position table
    embedding_width  embedding width where it isn't the hidden size (two projections bridge it)
    formats          native number format by class of weights; `weights` is the default of the
                     projections, all else stays at 16 bits unless named
    state_format     format of the recurrent state, where the model names one
    mtp              multi-token-prediction layers: stored, not part of plain decoding
    """

    name: str
    title: str | None = None
    aliases: tuple[str, ...] = ()
    family: str | None = None
    source: Provenance | None = None
    notes: tuple[str, ...] = ()
    hidden: Positive
    vocabulary: Positive
    output_vocabulary: Positive | None = None
    positions: Positive
    tied_embeddings: bool = False
    head_bias: bool = False
    embedding_width: Positive | None = None
    embedding_norm: bool = False
    learned_positions: Natural = 0
    norm: NORMS = "rms"
    final_norm: bool = True
    formats: dict[str, str] = msgspec.field(default_factory=lambda: {"weights": "bf16"})
    kv_format: str | None = None
    state_format: str | None = None
    layers: tuple[LayerGroup, ...]
    mtp: tuple[LayerGroup, ...] = ()
    extra: tuple[Extra, ...] = ()

    @classmethod
    def load(cls, name: str | Path) -> Model:
        """Model by catalogue name, alias, YAML path or `config.json` path."""
        from simulator.specs.catalogue import load_model

        return load_model(str(name))

    @property
    def layer_count(self) -> int:
        """Layers in all groups."""
        return sum(group.count for group in self.layers)

    @property
    def expert_count(self) -> int:
        """Routed experts of all layers."""
        return sum(g.count * g.ffn.experts for g in self.layers if isinstance(g.ffn, Moe))

    @property
    def head_rows(self) -> int:
        """Rows of the LM head."""
        return self.vocabulary if self.output_vocabulary is None else self.output_vocabulary


_STRUCTS: dict[str, type[Spec]] = {
    "attention": Attention, "mla": Mla, "mamba": Mamba, "mamba2": Mamba2,
    "gated_delta": GatedDelta, "short_conv": ShortConv, "dense": Dense, "moe": Moe,
}  # fmt: skip
_MIXERS = ("attention", "mla", "mamba", "mamba2", "gated_delta", "short_conv")
_FFNS = ("dense", "moe")


def _check_part(part: Any, kinds: tuple[str, ...], where: str) -> None:
    if part is None:
        return
    if not isinstance(part, dict):
        raise InputError(f"{where}: must be {{kind: ..., ...}}, not {part!r}")
    kind = part.get("kind")
    if kind not in kinds:
        raise InputError(f"{where}.kind: unknown kind '{kind}'{nearest(str(kind), kinds)}")
    _check_fields(part, _STRUCTS[kind], where, ("kind",))
    _check_word(part, "qk_norm", get_args(QK_NORMS), where)
    if isinstance(part.get("indexer"), dict):
        _check_fields(part["indexer"], Indexer, f"{where}.indexer")


def _check_word(data: dict[str, Any], key: str, choices: tuple[str, ...], where: str) -> None:
    word = data.get(key)
    if isinstance(word, str) and word not in choices:
        raise InputError(f"{where}: unknown {key} '{word}'{nearest(word, choices)}")


def _check_fields(
    data: dict[str, Any], struct: type[msgspec.Struct], where: str, more: tuple[str, ...] = ()
) -> None:
    known = (*struct.__struct_fields__, *more)
    for key in data:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{nearest(str(key), known)}")
    for field in msgspec.structs.fields(struct):
        if field.required and data.get(field.name) is None:
            raise InputError(f"{where}: '{field.name}' is missing")


def _check_layers(layers: Any, where: str) -> None:
    if not isinstance(layers, list) or not layers:
        raise InputError(f"{where}: must be a list with at least one group of layers")
    for index, group in enumerate(layers):
        place = f"{where}[{index}]"
        if not isinstance(group, dict):
            raise InputError(f"{place}: must be {{count, mixer, ffn}}, not {group!r}")
        _check_fields(group, LayerGroup, place)
        _check_part(group.get("mixer"), _MIXERS, f"{place}.mixer")
        _check_part(group.get("ffn"), _FFNS, f"{place}.ffn")


def _check_meaning(model: Model, where: str) -> None:
    for key, value in model.formats.items():
        if key not in FORMAT_CLASSES:
            raise InputError(f"{where}: formats: unknown class '{key}'"
                             f"{nearest(key, FORMAT_CLASSES)}")
        number_format(value, f"{where}: formats.{key}")
    for key in ("kv_format", "state_format"):
        if getattr(model, key) is not None:
            number_format(getattr(model, key), f"{where}: {key}")
    groups = [(f"layers[{i}]", group) for i, group in enumerate(model.layers)]
    groups += [(f"mtp[{i}]", group) for i, group in enumerate(model.mtp)]
    for label, group in groups:
        place = f"{where}: {label}"
        mixer, ffn = group.mixer, group.ffn
        if mixer is None and ffn is None:
            raise InputError(f"{place}: has neither mixer nor ffn")
        if isinstance(mixer, Attention):
            if mixer.heads % mixer.kv_heads:
                raise InputError(f"{place}.mixer.kv_heads: {mixer.kv_heads} does not divide "
                                 f"the {mixer.heads} heads")
            if mixer.window is not None and mixer.chunk is not None:
                raise InputError(f"{place}.mixer: has both window and chunk")
            if mixer.output_gate and mixer.values != mixer.head_dim:
                raise InputError(f"{place}.mixer.value_dim: {mixer.values} is not the head_dim "
                                 f"{mixer.head_dim}, as the output gate needs")
        if isinstance(ffn, Moe) and ffn.top_k > ffn.experts:
            raise InputError(f"{place}.ffn.top_k: {ffn.top_k} of only {ffn.experts} experts")
        if group.distinct is not None and group.distinct > group.count:
            raise InputError(f"{place}.distinct: {group.distinct} of only {group.count} layers")


def parse_model(data: dict[str, Any], where: str) -> Model:
    """The model that a file's mapping describes; `where` names the file in messages."""
    _check_fields(data, Model, where)
    _check_word(data, "norm", get_args(NORMS), where)
    _check_layers(data["layers"], f"{where}: layers")
    if data.get("mtp"):
        _check_layers(data["mtp"], f"{where}: mtp")
    clean = {key: value for key, value in data.items() if value is not None}
    if isinstance(clean.get("source"), dict):
        _check_fields(clean["source"], Provenance, f"{where}: source")
        clean["source"] = clean["source"] | {
            "date": parse_word(clean["source"], "date", f"{where}: source")}
    try:
        model = msgspec.convert(clean, Model, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_plain(str(error), clean)}") from None
    if not model.name:
        raise InputError(f"{where}: 'name' is empty")
    if model.source is not None and model.source.confidence not in CONFIDENCES:
        word = model.source.confidence
        raise InputError(f"{where}: source: unknown confidence '{word}'"
                         f"{nearest(word, CONFIDENCES)}")
    _check_meaning(model, where)
    return model


def _plain(message: str, data: Any) -> str:
    """msgspec's message as `layers[0].mixer.heads: -1: expected an int >= 1`."""
    match = re.match(r"(.*?)(?: - at `\$\.?(.*)`)?$", message)
    text, path = (match.group(1), match.group(2) or "") if match else (message, "")
    value: Any = data
    for step in re.findall(r"\w+", path):
        try:
            value = value[int(step)] if step.isdigit() else value[step]
        except (KeyError, IndexError, TypeError):
            return f"{path}: {text}"
    text = text.replace("`", "").replace("Expected", "expected")
    return f"{path}: {value!r}: {text}" if path else text


def read_model(path: Path) -> Model:
    """The model in a YAML file."""
    return parse_model(load_yaml(path), str(path))


def model_to_dict(model: Model) -> dict[str, Any]:
    """The mapping that `parse_model` reads back to an equal model; defaults left out."""
    full = msgspec.to_builtins(model)

    def trim(value: Any, struct: Any) -> Any:
        if isinstance(struct, msgspec.Struct):
            kept: dict[str, Any] = {}
            if "kind" in value:
                kept["kind"] = value["kind"]
            for field in msgspec.structs.fields(type(struct)):
                item = getattr(struct, field.name)
                default = field.default
                if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
                    default = field.default_factory()
                if item != default:
                    kept[field.name] = trim(value[field.name], item)
            return kept
        if isinstance(struct, tuple):
            return [trim(v, s) for v, s in zip(value, struct, strict=True)]
        return value

    trimmed: dict[str, Any] = trim(full, model)
    return trimmed
