"""The flags of speculation, chunked prefill and expert skew, and the deployment they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simulator.cli.common import real, whole
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.deployment import Deployment

F = TypeVar("F", bound=Callable[..., Any])


def feature_options(function: F) -> F:
    """--speculate and its kin."""
    options = [
        click.option("--speculate", metavar="KIND", help="draft (a small model), mtp (the model's "
                     "prediction layers) or ngram (no device time)."),
        click.option("--draft", metavar="MODEL", help="Draft model, on the same devices."),
        click.option("--draft-length", metavar="G", help="Tokens drafted a round [default: draft "
                     "5 (Leviathan A.3), mtp 1 (DeepSeek-V3), ngram 4 (a guess)]."),
        click.option("--acceptance", metavar="A", help="Probability that a drafted token is "
                     "accepted [default: draft 0.7 (Leviathan A.3), mtp 0.85 (DeepSeek-V3), ngram "
                     "0.4 (a guess)]."),
        click.option("--chunk", metavar="C", help="Prompt tokens a step: chunked prefill."),
        click.option("--expert-skew", metavar="X", default="1", show_default=True,
                     help="Factor on the largest load of an expert-parallel rank; 1: uniform "
                     "routing."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def featured(deployment: Deployment, options: dict[str, Any]) -> Deployment:
    """The deployment with the features that the flags ask for; takes the flags out."""
    from simulator.speculation import MOST_DRAFTS, Speculation

    kind, draft, length, acceptance, chunk, skew = (options.pop(n) for n in (
        "speculate", "draft", "draft_length", "acceptance", "chunk", "expert_skew"))
    changes: dict[str, Any] = {}
    if kind is None:
        for flag, text in (("draft", draft), ("draft-length", length), ("acceptance", acceptance)):
            if text is not None:
                raise InputError(f"--{flag}: nothing speculates; add for example --speculate "
                                 f"{'draft' if flag == 'draft' else 'ngram'}")
    else:
        from simulator.specs.model import Model

        changes["speculation"] = Speculation(
            kind.strip().lower(), None if draft is None else Model.load(draft),
            None if length is None else whole(length, "--draft-length", MOST_DRAFTS),
            None if acceptance is None else real(acceptance, "--acceptance", 0.0, 1.0))
    if chunk is not None:
        changes["chunk"] = whole(chunk, "--chunk")
    if (value := real(skew, "--expert-skew", 1.0)) != 1.0:
        if deployment.parallelism.ep == 1:
            raise InputError("--expert-skew: stands for the ranks of --ep, which is 1")
        changes["expert_skew"] = value
    return deployment.replace(**changes) if changes else deployment


def feature_warnings(d: Deployment) -> list[str]:
    """What a user should know about a draft that is allowed but odd."""
    draft = None if d.speculation is None else d.speculation.draft
    if draft is None or draft.vocabulary == d.model.vocabulary:
        return []
    return [f"{draft.name} has {draft.vocabulary:,} tokens in its vocabulary, {d.model.name} "
            f"{d.model.vocabulary:,}: a draft must share it"]
