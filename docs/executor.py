"""Writes docs/executor.md and its chart: this machine calibrated, predicted and measured.

    python docs/executor.py            calibrate and compare, under 10 minutes
"""

from __future__ import annotations

import sys
from pathlib import Path

from simulator import plots
from simulator.executor.comparison_report import comparison_lines, run_comparison
from simulator.plots.style import save

HERE = Path(__file__).resolve().parent
TEXT = """# Predict, run, compare

<!-- written by `python docs/executor.py`; the figures are of the machine named below -->

`tokline calibrate` measures a machine part by part: bandwidth over sizes from the caches to memory,
products over numbers of rows, attention, element-wise passes, and the fixed time of a kernel, a
layer and a step, everything twice and the shorter time counts. It runs no whole model. `tokline
validate --executor` then predicts models whose widths, depths, batches, contexts and number formats
calibration never saw, runs each of them with the executor (`simulator/executor/transformer.py`,
random weights), and compares.

    pip install 'tokline[torch]'
    tokline calibrate -o here.yaml             # two to three minutes
    tokline validate --executor --hardware here.yaml
    tokline estimate llama-3.2-1b here.yaml --engine executor --activations fp32

What decides on a CPU:

- **Caches.** A decode step reads all weights once. While they fit into the last-level cache they
  aren't streamed from memory; at twice its size none are left when they are needed again.
- **Rows.** A product of one row is bound by bytes, and between 2 and about 32 rows libraries
  reach a fraction of what they reach at 256. Rates are therefore measured over rows.
- **Formats.** A CPU without instructions for 16-bit products multiplies them slower than fp32:
  half the bytes, several times the arithmetic.
- **Fixed times.** In eager torch each layer costs some hundred microseconds of Python and dispatch,
  which decides for models below about 50 million parameters.

The executor runs every model of the catalogue and every model file: grouped-query, windowed,
chunked and latent attention (MLA, with its index), sinks and output gates, Mamba, Mamba-2, the
gated delta rule and short convolutions, gated and plain MLPs, routed and shared experts, RMS and
LayerNorm.
`tests/test_executor_families.py` holds its logits and greedy tokens against those of `transformers`
with the same weights, family by family. Where a model has no room, `--layers` and `--scale` cut it;
kinds of layers keep their shares.

What a model file doesn't say can't run: tensors that it only counts (`extra`) are read once a pass
and change nothing, a cross-attention layer without an image sees a token's own V alone, and layers
of one kind stand together. Mamba's scan goes token by token in Python and calibration doesn't time
it: prefill of such a model takes up to twice the prediction. Recurrences are timed as Mamba-2's.

A machine that does something else meanwhile can't be calibrated: `calibrate` then says so, and
`measure` marks its rows as quality C.

Weights in a format that was not timed, such as int4 for llama.cpp, are taken to stream as fast as
those that were: what expanding them costs isn't known.

![measured against predicted](images/executor.png)

```text
{table}
```

No GPU could be had when this was written: the same commands take `--device cuda`, but no figure of
one stands here.
"""


def main() -> None:
    """Run the comparison and write the page."""
    found = run_comparison(None, "cpu", ["fp32", "bf16", "fp16"], None, 9.0,
                           lambda text: print(f"\r{text}\x1b[K", end="", file=sys.stderr))
    save(plots.executor(found).figure, str(HERE / "images" / "executor.png"))
    (HERE / "executor.md").write_text(TEXT.format(table="\n".join(comparison_lines(found))),
                                      encoding="utf-8")


if __name__ == "__main__":
    main()
