"""Arguments and options that commands share, and how they become a Deployment and a Workload."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.choosing import Choice
    from simulator.deployment import Deployment, Parallelism, Workload

F = TypeVar("F", bound=Callable[..., Any])

_DEGREES = ("tp", "pp", "ep", "cp", "dp")


def names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion of catalogue names."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from simulator.specs.catalogue import catalogue

        return [n for n in catalogue("hardware" if kind == "hardware" else "models")
                if n.startswith(incomplete.lower())]

    return complete


def deployment_options(function: F) -> F:
    """MODEL HARDWARE and the flags of a deployment and a workload."""
    return click.argument("model", shell_complete=names("models"))(
        click.argument("hardware", shell_complete=names("hardware"))(deployment_flags(function)))


def deployment_flags(function: F) -> F:
    """The flags of a deployment and a workload, without MODEL and HARDWARE."""
    options = [
        click.option("--weights", metavar="FORMAT", help="Weights [default: the model's own]."),
        click.option("--activations", metavar="FORMAT", default="bf16", show_default=True,
                     help="Activations; matrices multiply at this precision."),
        click.option("--kv", metavar="FORMAT", help="KV cache [default: as activations]."),
        click.option("--format", "exceptions", metavar="ROLE=FORMAT", multiple=True,
                     help="Exception for one role of weights, as in head=int8 (repeatable)."),
        click.option("--engine", metavar="NAME", default="vllm", show_default=True,
                     help="Engine profile; 'ideal' adds nothing to physics."),
        click.option("--tp", metavar="N", help="Tensor-parallel degree."),
        click.option("--pp", metavar="N", help="Pipeline-parallel degree."),
        click.option("--ep", metavar="N", help="Expert-parallel degree, inside tp x dp."),
        click.option("--cp", metavar="N", help="Context-parallel degree."),
        click.option("--dp", metavar="N", help="Data-parallel replicas."),
        click.option("--nodes", metavar="N", help="Nodes of the devices in front, joined by the "
                     "scale-out link: 8xh100 --nodes 2 is 16 devices [default: 1]."),
        click.option("--bridge", is_flag=True, help="Use the NVLink bridge of the spec between "
                     "PCIe cards."),
        click.option("--batch", metavar="B", default="1", show_default=True,
                     help="Concurrent sequences of the deployment."),
        click.option("--input", "input_", metavar="N", default="1024", show_default=True,
                     help="Prompt tokens (8k = 8192)."),
        click.option("--output", metavar="N", default="256", show_default=True,
                     help="Output tokens."),
        click.option("--prefix-hit", metavar="R", default="0", show_default=True,
                     help="Share of the prompt in the prefix cache, 0 to 1."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def asked_for(name: str) -> bool:
    """Whether an option of the running command is the user's, not its default."""
    return click.get_current_context().get_parameter_source(name) not in (
        None, ParameterSource.DEFAULT)


def whole(text: str, flag: str, most: float = 1e9) -> int:
    """A count of at least 1 from a flag."""
    from simulator.units import parse_count

    if any(c in text for c in ",:"):
        raise InputError(f"{flag}: '{text}' is a list; estimate takes one number")
    value = parse_count(text, flag)
    if not 1 <= value <= most:
        raise InputError(f"{flag}: '{text}' is not between 1 and {most:,.0f}")
    return int(value)


def real(text: str, flag: str, low: float, high: float = math.inf) -> float:
    """A number from a flag, between two ends."""
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{flag}: '{text}' is not a number") from None
    if not (math.isfinite(value) and low <= value <= high):
        ends = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at least {low:g}"
        raise InputError(f"{flag}: '{text}' is not {ends}")
    return value


def exceptions(pairs: Iterable[str]) -> dict[str, str]:
    """Formats by role from repeated `--format ROLE=FORMAT`."""
    from simulator.deployment import FORMAT_ROLES
    from simulator.errors import nearest
    from simulator.formats import number_format

    found: dict[str, str] = {}
    for pair in pairs:
        role, equals, name = (part.strip() for part in pair.partition("="))
        if not equals or not role or not name:
            raise InputError(f"--format: '{pair}' is not ROLE=FORMAT, write for example head=int8")
        role = role.lower()
        if role in ("weights", "activations", "kv"):
            raise InputError(f"--format: '{role}' is a flag of its own, write --{role} {name}")
        if role not in FORMAT_ROLES:
            raise InputError(f"--format: unknown role '{role}'{nearest(role, FORMAT_ROLES)}")
        if role in found:
            raise InputError(f"--format: '{role}' is given twice")
        found[role] = number_format(name, f"--format {role}").name
    return found


def parallelism(count: int | None, flags: dict[str, str | None], hardware: str,
                nodes: int = 1) -> Parallelism:
    """Degrees from the flags, the number in front of the hardware and the nodes, which agree."""
    from simulator.deployment import Parallelism
    from simulator.systems import default_parallelism

    degrees = {n: whole("1" if (text := flags[n]) is None else text, f"--{n}", 4096)
               for n in _DEGREES}
    chosen = Parallelism(**degrees)
    if all(flags[n] is None for n in _DEGREES if n != "ep"):
        chosen = default_parallelism(count or 1, nodes, degrees["ep"])
    count = None if count is None else count * nodes
    if count is not None and chosen.devices != count:
        product = " x ".join(f"{n} {degrees[n]}" for n in _DEGREES if n != "ep"
                             and degrees[n] > 1) or "1 device"
        raise InputError(f"'{hardware}{f' --nodes {nodes}' if nodes > 1 else ''}' is {count} "
                         f"devices, but the flags make {chosen.devices} "
                         f"({product})")
    return chosen


def build(options: dict[str, Any]) -> tuple[Deployment, Workload]:
    """Deployment and workload of a command's options."""
    deployment, workload, count, nodes = _asked(options)
    degrees = parallelism(count, {n: options[n] for n in _DEGREES}, options["hardware"], nodes)
    deployment = deployment.replace(parallelism=degrees, nodes=nodes)
    from simulator.systems import bridged, check_links

    if options.get("bridge"):
        deployment = bridged(deployment)
    check_links(deployment)
    return deployment, workload


def build_best(options: dict[str, Any], goal: str) -> tuple[Deployment, Workload, Choice]:
    """The same with the parallelism that is best for a goal, and the splits it was taken from."""
    from simulator.choosing import choose

    given = [n for n in _DEGREES if options[n] is not None]
    if options.get("bridge"):
        raise InputError("--bridge: holds for given degrees only, not with --optimise")
    if given:
        raise InputError(f"--optimise: picks the degrees itself; leave out --{given[0]}")
    deployment, workload, count, nodes = _asked(options)
    if count is None and options.get("nodes") is not None:
        raise InputError(f"--nodes: say how many devices a node has, as in 8x{options['hardware']}")
    choice = choose(deployment, workload, goal, None if count is None else count * nodes, nodes)
    return choice.deployment, workload, choice


def _asked(options: dict[str, Any]) -> tuple[Deployment, Workload, int | None, int]:
    """Deployment on one device, workload, devices in front of the hardware, nodes."""
    from simulator.deployment import Deployment, Workload
    from simulator.specs.catalogue import load_hardware, load_model, split_devices
    from simulator.specs.engine import load_engine

    count, name = split_devices(options["hardware"])
    if count is not None and not 1 <= count <= 4096:
        raise InputError(f"hardware '{options['hardware']}': {count} devices, "
                         "must be between 1 and 4,096")
    model, hardware = load_model(options["model"]), load_hardware(name)
    nodes = whole(options.get("nodes") or "1", "--nodes", 4096)
    deployment = Deployment(
        model, hardware, load_engine(options["engine"]), options["weights"],
        options["activations"], options["kv"], exceptions(options.get("exceptions", ())),
        prefix_hit=real(options["prefix_hit"], "--prefix-hit", 0.0, 1.0))
    workload = Workload(whole(options["batch"], "--batch"), whole(options["input_"], "--input"),
                        whole(options["output"], "--output"))
    return deployment, workload, count, nodes


def warnings(d: Deployment, w: Workload) -> list[str]:
    """What a user should know about an input that is allowed but odd."""
    from simulator.specs.hardware import FP16_SUMS

    found = []
    if w.input + w.output > d.model.positions:
        found.append(f"input + output = {w.input + w.output:,} is beyond the "
                     f"{d.model.positions:,} positions of {d.model.name}")
    if d.hardware.status in ("announced", "hypothetical"):
        found.append(f"{d.hardware.title} is {d.hardware.status}: its figures are not a "
                     "specification")
    wanted = d.compute("ffn")
    used = d.hardware.peak(wanted)[1]
    wanted, used = (x.removesuffix(FP16_SUMS.removeprefix("fp16")) for x in (wanted, used))
    if used != wanted:
        found.append(f"{d.hardware.title} has no {wanted} peak: computes at {used}")
    return found


def write_json(value: Any) -> None:
    """One JSON value on stdout, nothing else."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2).decode()
    click.echo(text)


def _plain(value: Any) -> Any:
    """A NumPy number as the plain one it holds."""
    return value.item()


def write_lines(lines: list[str]) -> None:
    """Text on stdout; coloured by rich on a terminal only."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=True, soft_wrap=True)
        for line in lines:
            style = ("bold green" if line.startswith("FITS") else
                     "bold red" if line.startswith("DOES NOT FIT") else None)
            console.print(line, style=style, markup=False)
        return
    click.echo("\n".join(lines))


def write_warnings(found: list[str]) -> None:
    """Warnings on stderr."""
    for text in found:
        click.echo(f"tokline: warning: {text}", err=True)
