"""Multi-head latent attention: one latent a token is cached, whatever the KV heads key says."""

from __future__ import annotations

from simulator.importers import experts
from simulator.importers.reader import Config
from simulator.importers.standard import Traits, feed_forward, layer_kind
from simulator.specs.model import Extra, Indexer, LayerGroup, Mla, Moe

DENSE = Traits()
SPARSE = Traits(experts=experts.deepseek)


def latent_attention(config: Config) -> Mla:
    """Latent attention, with the index of sparse attention where the file has one."""
    indexer = None
    if (config.found("index_head_dim") or config.found("index_n_heads")
            or "index_head_dim" in config.defaults):
        indexer = Indexer(heads=config.integer("index_n_heads"),
                          head_dim=config.integer("index_head_dim"),
                          top_k=config.integer("index_topk"))
    biased = config.flag("attention_bias")
    heads = config.integer("heads")
    value_dim = config.optional("v_head_dim")
    if value_dim is None and config.origin == "MiniCPM3Config":
        value_dim = config.integer("hidden") // heads
        config.note(f"v_head_dim: missing, hidden / heads = {value_dim} (rule of the class)")
    if config.found("kv_heads"):
        config.note(f"{config.key('kv_heads')}: not used, latent attention caches "
                    "kv_lora_rank + qk_rope_head_dim values a token")
    return Mla(
        heads=heads, q_rank=config.optional("q_lora_rank"),
        kv_rank=config.integer("kv_lora_rank"), nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim") if value_dim is None else value_dim,
        qkv_bias=biased, output_bias=biased, indexer=indexer)  # fmt: skip


def latent_layers(config: Config, traits: Traits) -> list[LayerGroup]:
    """One group a layer."""
    layers = config.layers()
    for index in range(layers):
        layer_kind(config, index, layers, ("full", "indexed"))
    mixer = latent_attention(config)
    return [LayerGroup(count=1, mixer=mixer, ffn=feed_forward(config, traits, i, layers))
            for i in range(layers)]


def sparse_latent_layers(config: Config) -> list[LayerGroup]:
    """DeepSeek V2, V3, Kimi K2, GLM-5: dense layers first, then experts."""
    return latent_layers(config, SPARSE)


def dense_latent_layers(config: Config) -> list[LayerGroup]:
    """MiniCPM3: latent attention with a dense MLP."""
    return latent_layers(config, DENSE)


def mtp_layers(config: Config, layers: list[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Multi-token-prediction layers as DeepSeek-V3 stores them: a layer of the main stack, a
    projection from twice the hidden size, and three norms more.
    """
    count = config.optional("mtp", least=0) or 0
    if not count:
        return ()
    hidden = config.integer("hidden")
    last = next((g for g in reversed(layers) if isinstance(g.ffn, Moe)), layers[-1])
    config.note(f"{config.key('mtp')}: {count} prediction layer(s) counted apart, as a copy of "
                "the last layer with a projection of 2 x hidden and three norms")
    return (last.replace(count=count, norms=last.norms + 3,
                         extra=(*last.extra, Extra(name="projection",
                                                   elements=2 * hidden * hidden))),)
