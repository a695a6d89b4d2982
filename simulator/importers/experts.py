"""Which layers have experts, and how wide they are: one small rule a family."""

from __future__ import annotations

from simulator.errors import InputError
from simulator.importers.reader import Config, short
from simulator.specs.model import Moe


def in_all_layers(config: Config, index: int, layers: int) -> Moe:
    """Mixtral and kin: `intermediate_size` IS the width of an expert."""
    return Moe(experts=config.integer("experts"), top_k=config.integer("top_k"),
               width=config.integer("width"))


def oss(config: Config, index: int, layers: int) -> Moe:
    """gpt-oss: experts and router with biases."""
    return in_all_layers(config, index, layers).replace(  # type: ignore[no-any-return]
        router_bias=True, expert_bias=True)


def dense_beside_key(config: Config, index: int, layers: int) -> Moe | None:
    """MiniCPM and kin: experts only where the file names any."""
    return in_all_layers(config, index, layers) if config.found("experts") else None


def qwen(config: Config, index: int, layers: int) -> Moe | None:
    """Qwen: sparse steps, dense exceptions, a gated shared expert given by its width."""
    dense_only = config.listed("mlp_only_layers") or ()
    step = config.integer("decoder_sparse_step", 1)
    if index in dense_only or (index + 1) % step:
        return None
    has_shared = "shared_width" in config.defaults
    shared = config.integer("shared_width", least=0) if has_shared else 0
    return Moe(experts=config.integer("experts"), top_k=config.integer("top_k"),
               width=config.integer("expert_width"), shared_width=shared, shared_gate=shared > 0)


def _is_sparse(config: Config, kind: object) -> bool:
    if kind not in ("sparse", "dense"):
        raise InputError(f"{config.where}: mlp_layer_types: {short(kind)} is neither 'sparse' "
                         "nor 'dense'")
    return kind == "sparse"


def shared_count(config: Config) -> int:
    """Shared experts as a count; null means none, whatever the class default is."""
    if config.has_null("shared_experts") and config.found("shared_experts") is None:
        return 0
    return config.integer("shared_experts", least=0)


def _after_dense(config: Config, index: int, layers: int) -> bool:
    kinds = config.layer_list("mlp_layer_types", layers)
    found = config.found("moe_layer_freq")
    if kinds is not None or (found is not None and isinstance(found[1], list)):
        config.unused("first_k_dense_replace", "moe_layer_freq")
        if kinds is not None:
            return _is_sparse(config, kinds[index])
        values = config.layer_list("moe_layer_freq", layers)
        return values is None or bool(values[index])
    first = config.integer("first_k_dense_replace", least=0)
    step = config.integer("moe_layer_freq", 1)
    return index >= first and index % step == 0


def deepseek(config: Config, index: int, layers: int) -> Moe | None:
    """DeepSeek and kin: dense layers first, shared experts as a count of expert widths."""
    if not _after_dense(config, index, layers):
        return None
    width = config.integer("expert_width")
    return Moe(experts=config.integer("experts"), top_k=config.integer("top_k"), width=width,
               shared_width=shared_count(config) * width)


def llama4(config: Config, index: int, layers: int) -> Moe | None:
    """Llama 4: every n-th layer; experts and the shared expert have `intermediate_size`."""
    listed = config.listed("moe_layers")
    step = config.integer("interleave_moe_layer_step", 1)
    sparse = index in listed if listed else (index + 1) % step == 0
    if not sparse:
        return None
    moe = in_all_layers(config, index, layers)
    return moe.replace(shared_width=moe.width)  # type: ignore[no-any-return]


def hunyuan(config: Config, index: int, layers: int) -> Moe | None:
    """Hunyuan: top-k, widths and shared experts may be lists with one entry a layer."""
    experts = config.per_layer("experts", index, layers)
    if experts is None or experts == 1:
        return None
    width = config.per_layer("expert_width", index, layers) or config.integer("width")
    top_k = config.per_layer("top_k", index, layers) or config.integer("top_k")
    shared = config.per_layer("shared_experts", index, layers, least=0)
    shared = shared_count(config) if shared is None else shared
    return Moe(experts=experts, top_k=top_k, width=width, shared_width=shared * width)


def jamba(config: Config, index: int, layers: int) -> Moe | None:
    """Jamba: one layer in `expert_layer_period`, counted from the offset."""
    period = config.integer("expert_layer_period")
    if (index - config.integer("expert_layer_offset", least=0)) % period:
        return None
    if config.integer("experts") == 1:
        return None
    return in_all_layers(config, index, layers)


def granite(config: Config, index: int, layers: int) -> Moe:
    """Granite MoE: as Mixtral, with an optional shared expert given by its width."""
    shared = config.integer("shared_width", 0, "no shared expert", least=0)
    return in_all_layers(config, index, layers).replace(  # type: ignore[no-any-return]
        shared_width=shared)


def ernie(config: Config, index: int, layers: int) -> Moe | None:
    """ERNIE 4.5: experts between two layer indices, at an interval."""
    if config.flag("use_bias"):
        raise InputError(f"{config.where}: use_bias: true has no verified layout in this family")
    start = config.integer("moe_layer_start_index", 0, least=0)
    end = config.integer("moe_layer_end_index", layers - 1, least=-1)
    end = layers - 1 if end == -1 else end
    step = config.integer("moe_layer_interval", 1)
    if not start <= index <= end or (index + 1) % step:
        return None
    width = config.integer("expert_width")
    return Moe(experts=config.integer("experts"), top_k=config.integer("top_k"), width=width,
               shared_width=shared_count(config) * width, router_bias=True)


def grok(config: Config, index: int, layers: int) -> Moe:
    """Grok-1: the original code gives a widening factor in place of a width."""
    if config.found("width") or not config.found("widening_factor"):
        return in_all_layers(config, index, layers)
    factor = config.number("widening_factor", 8.0)
    width = int(factor * config.integer("hidden")) * 2 // 3
    width += -width % 8
    config.note(f"intermediate_size: taken as two thirds of widening_factor x hidden = {width}")
    return Moe(experts=config.integer("experts"), top_k=config.integer("top_k"), width=width)
