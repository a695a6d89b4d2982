"""The README quotes real output; the catalogue is installed with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_readme_is_up_to_date() -> None:
    """`python docs/refresh.py` leaves the README as it is."""
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "refresh.py"), "--check"],
                          cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run: python docs/refresh.py\n" + done.stderr


def test_main_command_runs_from_any_folder(tmp_path: Path) -> None:
    """The catalogue is found whatever the working directory."""
    code = "from simulator.cli import main; main(['estimate', 'llama-2-7b', 'a100-sxm4-80gb'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Llama 2 7B on NVIDIA A100")
