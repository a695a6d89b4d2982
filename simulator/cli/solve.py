"""`tokline solve`: what a target needs, or what limits where nothing reaches it."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import (
    asked_for,
    build,
    deployment_options,
    real,
    warnings,
    write_json,
    write_lines,
    write_warnings,
)


@click.command("solve")
@deployment_options
@click.option("--find", "--for", "find", metavar="QUANTITY", required=True,
              help="memory-bandwidth, memory-capacity, flops, link-bandwidth, link-latency, "
              "bandwidth-efficiency, compute-efficiency, layer-overhead, host-time, price, "
              "devices, batch, context or format.")
@click.option("--target", "targets", metavar="KEY=VALUE", multiple=True,
              help="tpot=10ms, ttft=0.2s, e2e=3s, tok/s=100 (per user), total-tok/s=2000, "
              "device-tok/s=500, usd=0.5 (per M output tokens), joules=1 (per token); repeat it "
              "for several. Without one: that it fits.")
@click.option("--figure", metavar="NAME", default="expected", show_default=True,
              help="expected, ceiling, low or high, as 'estimate' prints them.")
@click.option("--price", metavar="USD/H", help="Price of one device [default: the spec's, dated].")
@click.option("--force", is_flag=True, help="Ignore memory.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(find: str, targets: tuple[str, ...], figure: str, price: str | None, force: bool,
            as_json: bool, **options: Any) -> int:
    """The value of one quantity at which MODEL on HARDWARE meets a target, all else fixed.

    Bandwidth, capacity, FLOP/s, devices: the least that meets it; batch and context: the most (the
    least batch where throughput or cost is the target); format: the widest. Exit code 1 where no
    value reaches it; then it says what remains.
    """
    from simulator.metrics import parse_target
    from simulator.solve import solve

    wanted = [parse_target(text) for text in targets]
    deployment, workload = build(options)
    dollars = None if price is None else real(price, "--price", 0.0)
    s = solve(deployment, workload, find, wanted, figure, dollars, force)
    from simulator.output import basis
    from simulator.request import causes as find_causes
    from simulator.solve_report import solution_dict, solution_lines

    notes = warnings(deployment, workload)
    write_warnings(notes)
    causes = [] if s.solved is None else find_causes(s.solved.deployment, s.solved.workload)
    if as_json:
        write_json(solution_dict(s, causes, notes))
        return 0 if s.found else 1
    lines = solution_lines(s)
    if s.solved is not None:
        from simulator.report import estimate_lines

        lines += ["", "The estimate there:", ""]
        lines += estimate_lines(s.solved, [], [], causes, str(basis(s.solved, causes)["text"]),
                                force, asked_for("activations"))
    write_lines(lines)
    return 0 if s.found else 1
