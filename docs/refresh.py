"""Rewrites what the README quotes: its first output, both accuracies, the catalogue's sizes.

    python docs/refresh.py            rewrite README.md
    python docs/refresh.py --check    exit 1 where README.md is out of date
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ACCURACY = (
    "Median |ln(predicted/measured)|, mean over sources, of published figures that no constant\n"
    "was fitted on (0.10 is about 10 %; `tokline validate`):")
README = Path(__file__).resolve().parent.parent / "README.md"


def main_command(text: str) -> list[str]:
    """The `tokline estimate` command on the README's first screen."""
    match = re.search(r"<!-- main command -->.*?(tokline estimate [^\n&|]*)", text, re.DOTALL)
    if match is None:
        raise SystemExit("README.md holds no main command")
    return match.group(1).split()


def run(arguments: list[str]) -> str:
    """What a tokline command prints."""
    code = "import sys; from simulator.cli import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *arguments[1:]], capture_output=True,
                          text=True, check=True)
    return done.stdout.rstrip("\n")


def executor_table() -> str:
    """Errors by phase of the page that docs/executor.py wrote, with the machine it ran on."""
    page = (README.parent / "docs" / "executor.md").read_text(encoding="utf-8")
    where = re.search(r"measured on (.*)", page)
    rows = re.findall(r"^(prefill|decode) +(\d+) +(\S+%) +(\S+%) +(\S+%) +(\S+%)$", page,
                      re.MULTILINE)
    if where is None or len(rows) != 2:
        raise SystemExit("docs/executor.md holds no table; run python docs/executor.py")
    lines = [f"Error of the expectation on {where.group(1)}:", "",
             "| phase | points | median | 90 % within | bias | inside the range |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def refreshed(text: str) -> str:
    """The README with what it quotes brought up to date."""
    from simulator.specs.catalogue import catalogue
    from simulator.validation.run import validate

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from accuracy import ways

    table = "\n".join(ways(validate()))
    text = re.sub(r"(<!-- accuracy -->\n).*?(<!-- end of accuracy -->)",
                  lambda m: f"{m.group(1)}{ACCURACY}\n\n{table}\n{m.group(2)}", text,
                  flags=re.DOTALL)
    text = re.sub(r"(<!-- executor -->\n).*?(<!-- end of executor -->)",
                  lambda m: f"{m.group(1)}{executor_table()}\n{m.group(2)}", text, flags=re.DOTALL)
    output = run(main_command(text))
    text = re.sub(r"(<!-- main command -->.*?```text\n).*?(\n```)",
                  lambda m: m.group(1) + output + m.group(2), text, count=1, flags=re.DOTALL)
    text = re.sub(r"\S+ devices, each number", f"{len(catalogue('hardware'))} devices, each number",
                  text)
    return re.sub(r"\S+ models, exact parameters",
                  f"{len(catalogue('models'))} models, exact parameters", text)


def main() -> int:
    """Rewrite or check."""
    text = README.read_text(encoding="utf-8")
    new = refreshed(text)
    if "--check" in sys.argv[1:]:
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
