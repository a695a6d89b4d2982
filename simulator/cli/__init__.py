"""The command line. One file a command; no arithmetic here.

Exit codes: 0 yes, 1 the answer is no (it doesn't fit), 2 bad input, 70 a bug.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from simulator.errors import InputError, nearest

_COMMANDS = {
    "estimate": "TTFT, TPOT and tok/s of a model on hardware, with what limits them.",
    "compare": "Hardware, models or formats side by side, and why they differ.",
    "solve": "The bandwidth, capacity, FLOP/s, devices ... that a target needs.",
    "roofline": "Draw every operation of prefill and decode on the roofline.",
    "plot": "Draw latency, throughput, cost, memory, pareto, breakdown or context.",
    "sweep": "Every estimate of a grid: the Pareto front, the best, the table in a file.",
    "simulate": "Requests through a deployment: queues, batches, percentiles under load.",
    "plan": "How many of which machine serve a traffic within targets, at what cost.",
    "disaggregate": "Prefill and decode on pools of their own, against both together.",
    "validate": "Predictions beside published measurements, and how far off they are.",
    "measure": "Run a real decoder on this machine and time prefill and decode.",
    "calibrate": "Measure this machine, or fit a chip to benchmark files that you have.",
    "memory": "Whether it fits, and the largest batch and context that do.",
    "hardware": "List and show the devices of the catalogue.",
    "models": "List and show the models of the catalogue.",
}


class LazyGroup(click.Group):
    """Imports a command's file when the command is run, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in _COMMANDS:
            return None
        import importlib

        command: click.Command = importlib.import_module(f"simulator.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but a wrong name finds the nearest command."""
        if args and args[0] not in _COMMANDS:
            raise InputError(f"unknown command '{args[0]}'{nearest(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"],
                                              "max_content_width": 100})
@click.version_option(None, "-V", "--version", package_name="tokline", prog_name="tokline")
def cli() -> None:
    """How fast a language model runs on a chip, and why.

    Prefill multiplies matrices over the whole prompt, so FLOP/s decide. Decode streams every
    weight and the KV cache for each token, so bytes/s decide.
    """


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".").replace("\n", " ")
    possible = [o for p in (error.ctx.command.params if error.ctx else []) for o in p.opts]
    if isinstance(error, click.NoSuchOption):
        return f"no such option: {error.option_name}{nearest(error.option_name, possible)}"
    return message


def main(args: list[str] | None = None) -> None:
    """Run the command line; every input error is one line on stderr and exit code 2."""
    import gc

    # Imports make many objects and no garbage: looking for it at each 700th costs 5 % of a start.
    gc.set_threshold(50_000, 20, 20)
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Exit code of a run, with the error printed."""
    try:
        result: Any = cli.main(args=args, prog_name="tokline", standalone_mode=False)
    except InputError as error:
        return _fail(str(error), 2)
    except click.UsageError as error:
        return _fail(_usage(error), 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # A bug must be told apart from bad input, and must not look like an answer.
        if os.environ.get("TOKLINE_DEBUG"):
            raise
        return _fail(f"internal error, please report it: {type(error).__name__}: {error} "
                     "(TOKLINE_DEBUG=1 shows where)", 70)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print("tokline: " + " ".join(message.split()), file=sys.stderr)
    return code
