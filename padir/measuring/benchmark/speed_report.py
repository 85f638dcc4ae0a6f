"""Results of `padir benchmark` as tables and as a plot of quality over speed, with a description of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from padir.errors import PadirError
from padir.evaluation import to_markdown as evaluation_markdown
from padir.evaluation.report import cells
from padir.evaluation.rows import Rows, label
from padir.reporting import tables
from padir.reporting.tables import require_matplotlib

_LIBRARIES = ("padir", "jax", "jaxlib", "flax", "sentencepiece", "ctranslate2", "transformers")
# Variables that change the speed.
_VARIABLES = ("XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION", "GLIBC_TUNABLES", "OMP_NUM_THREADS", "LD_PRELOAD")


def environment() -> dict[str, Any]:
    """The machine, its load and the versions of libraries, as a JSON object."""
    device = jax.devices()[0]
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # over a minute, this process included
    }


def _processor() -> str:
    """The processor's name as Linux reports it; "" on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def machine_line(where: Mapping[str, Any]) -> str:
    """The machine and the versions of `environment` in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return f"{where['cores']} cores of {where['processor'] or 'unknown'}, {where['device']}; {versions}"


def summary(row: dict[str, Any]) -> str:
    """A row's latency, throughput and ratio in one line, to show progress."""
    return (
        f"{_value(row, 'p50_ms'):.1f} ms a batch of {row['batch_size']}, {_value(row, 'sentences_per_second'):.1f}"
        f" sentences/s, {_value(row, 'ratio'):.2f} times those of the first row"
    )


def show(rows: Rows, where: Mapping[str, Any]) -> None:
    """Prints tables of the metrics and of the stages' times."""
    columns, lines = cells(rows)
    tables.show(f"translating, measured on {machine_line(where)}", columns, lines)
    tables.show("milliseconds of each stage of a batch", *stage_table(rows))


def stage_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of a table: milliseconds of each stage, one line for each row."""
    names = list(dict.fromkeys(name for row in rows for name in row["details"]["stages"]))
    lines = []
    for i, row in enumerate(rows, 1):
        stages = row["details"]["stages"]
        times = [f"{1e3 * stages[name]:.2f}" if name in stages else "-" for name in names]
        lines.append([str(i), label(row, rows), *times])
    return ["#", "system", *names], lines


def to_markdown(rows: Rows, where: Mapping[str, Any]) -> str:
    """The metrics, the stages' times and the machine as Markdown text."""
    columns, lines = stage_table(rows)
    stages = tables.markdown(columns, lines, words=("system",))
    return (
        f"{evaluation_markdown(rows)}\nMilliseconds of each stage of a batch, measured with every stage waiting for the"
        f" end of the stage before it (medians over the batches):\n\n{stages}\nMeasured on {machine_line(where)}.\n"
    )


def plot(rows: Rows, path: str | Path, title: str) -> None:
    """Draws BLEU over sentences per second with the Pareto front, one panel for each batch size, as a PNG.

    Points have the numbers of their systems in the legend; squares are autoregressive models.

    Raises:
      PadirError: matplotlib is not installed, or no row has BLEU.
    """
    measured = [row for row in rows if "bleu" in row["scores"]]
    if not measured:
        raise PadirError("a plot of quality over speed needs references: give a test set that has some")
    require_matplotlib()
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    sizes = list(dict.fromkeys(row["batch_size"] for row in measured))
    first = [row for row in measured if row["batch_size"] == sizes[0]]  # every batch size has the same systems
    numbers = {label(row, first): number for number, row in enumerate(first, 1)}
    figure = Figure(figsize=(5.5 * len(sizes) + 3.5, 5), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        here = [row for row in measured if row["batch_size"] == size]
        points = [(_value(row, "sentences_per_second"), _value(row, "bleu")) for row in here]
        front = pareto(points)
        axes.plot(*zip(*front, strict=True), color="0.6", linewidth=1, zorder=0)
        for row, point in zip(here, points, strict=True):
            name = label(row, here)
            color = colormaps["tab20"]((numbers[name] - 1) % 20)
            axes.plot(*point, "s" if row["causal"] else "o", color=color, label=f"{numbers[name]}  {name}")
            axes.annotate(str(numbers[name]), point, xytext=(4, 4), textcoords="offset points", fontsize="x-small")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.minorticks_off()
        axes.set_xlabel("sentences per second")
        axes.set_ylabel("BLEU")
        axes.set_title(f"batch size {size}")
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right lower", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, format="png", dpi=120)


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point equals or beats in both coordinates, sorted by the first.

    >>> pareto([(1.0, 5.0), (2.0, 4.0), (3.0, 4.0), (0.5, 4.5)])
    [(1.0, 5.0), (3.0, 4.0)]
    """
    front: list[tuple[float, float]] = []
    for point in sorted(set(points), reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def _value(row: dict[str, Any], name: str) -> float:
    return row["scores"][name]["value"]
