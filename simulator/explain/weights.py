"""Weights that a step streams: values by number format, experts by how many are touched."""

from __future__ import annotations

from simulator.deployment import Deployment
from simulator.explain.lines import amount, exact, many, row
from simulator.explain.passes import Pass, parts_of
from simulator.formats import NumberFormat
from simulator.layer_parts import Shares
from simulator.operations.moe import experts_touched, imbalance
from simulator.parameters import ffn_tensors
from simulator.specs.model import Moe
from simulator.units import (
    format_decimal_bytes,
)

ROLES = {
    "attention": "attention", "ffn": "MLP", "ssm": "recurrent layers", "head": "LM head",
    "shared_experts": "shared experts", "router": "router", "norm": "norms and biases",
    "embedding": "embedding rows", "other": "other tensors",
}  # fmt: skip


def role_of(name: str) -> str:
    if name in ("qkv", "q", "kv_down", "q_up", "qkv_down", "attention_output", "mla_absorb",
                "mla_expand", "indexer_queries", "indexer_keys"):
        return "attention"
    if name in ("norm", "small_weights", "final_norm", "embedding_norm", "head_bias"):
        return "norm"
    fixed = {"router": "router", "lm_head": "head", "embedding": "embedding",
             "latent_down": "ffn", "latent_up": "ffn", "embedding_up": "ffn",
             "embedding_down": "ffn"}
    starts = (("shared_experts", "shared_experts"), ("ssm_", "ssm"), ("mlp_", "ffn"))
    return fixed.get(name) or next((r for s, r in starts if name.startswith(s)), "other")


def fullest_rank(p: Pass, f: Moe) -> float:
    """Load of the fullest expert-parallel rank over the mean; 1 where there is one rank."""
    share = Shares.of(p.d)
    return float(imbalance(p.tokens * share.expert_tokens, f.top_k, f.experts, share.experts,
                           p.d.expert_skew))


def moes(d: Deployment) -> list[tuple[Moe, float]]:
    """Kinds of routed experts and the layers that have them."""
    found: dict[Moe, float] = {}
    for g in d.model.layers:
        if isinstance(g.ffn, Moe):
            found[g.ffn] = found.get(g.ffn, 0.0) + g.count
    return list(found.items())


def expert_values(d: Deployment, moe: Moe) -> tuple[float, float]:
    """Weights and bias values of one expert, as far as one device holds them."""
    sizes = {t.name: float(t.elements) for t in ffn_tensors(moe, d.model.hidden)}
    share = Shares.of(d)
    return (sizes["experts"] / moe.experts / share.expert_width,
            sizes["expert_bias"] / moe.experts)


def weights_part(p: Pass) -> tuple[list[str], float]:
    """The weights that a pass reads: one line a number format, routed experts apart."""
    d, share = p.d, Shares.of(p.d)
    total = 0.0
    formats: dict[NumberFormat, dict[str, float]] = {}

    def add(role: str, size: float) -> None:
        roles = formats.setdefault(d.weight_format(role), {})
        roles[role] = roles.get(role, 0.0) + size

    for t in p.ceiling.operations:
        size = parts_of(p, t)[0]
        total += size
        if size and t.operation.name != "experts":
            add(role_of(t.operation.name), size)
    routed = []
    for moe, layers in moes(d):
        T = p.tokens * share.expert_tokens
        replicas = f" of all {d.parallelism.dp} replicas" if share.expert_tokens > 1 else ""
        fullest, shown = fullest_rank(p, moe), exact(T)
        if share.experts > 1:
            fullest = fullest_rank(p, moe)
            routed.append(row(
                "load of the fullest rank", "(m + sqrt(2 m ln R)) / m", amount(fullest),
                f"over the mean m = {amount(T * moe.top_k / share.experts)} choices a rank, R = "
                f"{share.experts:g} ranks" + (f", skew {float(d.expert_skew):g}"
                                              if d.expert_skew != 1.0 else "")))
        touched = float(experts_touched(moe.experts, moe.top_k, T))
        routed.append(row(
            "experts touched", f"{moe.experts} x (1 - (1 - {moe.top_k}/{moe.experts})^{shown})",
            amount(touched), f"E(1-(1-k/E)^T) of E = {moe.experts} experts, T = "
            f"{many(T, 'token')}{replicas}, k = {moe.top_k} each"))
        held = moe.experts / share.experts
        here = touched
        if share.experts > 1:
            here = float(experts_touched(moe.experts, moe.top_k, T * fullest)) / share.experts
            routed.append(row(
                "touched on a device", f"{held:g} x (1 - (1 - {moe.top_k}/{moe.experts})^"
                f"{amount(T * fullest)})", amount(here), f"by {amount(fullest)} times the tokens, "
                f"on the fullest device, which holds {held:g} of {moe.experts} experts"))
        values, bias = expert_values(d, moe)
        form = d.weight_format("experts")
        routed.append(row(
            "+ routed experts", f"{amount(here)} experts x {amount(values)} values x "
            f"{form.bytes:g} B ({form.name}) x {many(layers, 'layer')}",
            format_decimal_bytes(here * values * form.bytes * layers)))
        if bias:
            add("norm", here * bias * d.weight_format("norm").bytes * layers)
    lines = []
    for form, roles in sorted(formats.items(), key=lambda item: -sum(item[1].values())):
        size = sum(roles.values())
        names = ", ".join(ROLES[r] for r, v in sorted(roles.items(), key=lambda r: -r[1])
                          if v > 0.001 * size)
        lines.append(row(f"+ {form.name} weights",
                           f"{amount(size / form.bytes, 3)} values x {form.bytes:g} B "
                           f"({form.name})", format_decimal_bytes(size), names))
    return [*lines, *routed,
            row("= weights streamed", "", format_decimal_bytes(total))], total
