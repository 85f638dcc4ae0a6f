"""Pictures of attention, calibration and audits as PNG files."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from padir.reporting.tables import COLOURS, styled_figure
from padir.studies.analysis.association import Reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is an extra

_MARKERS = "osD^vPX"


def png(draw: Callable[..., None], *args: Any, **options: Any) -> bytes:
    """The PNG file of the picture that `draw(figure, *args, **options)` makes, in 256 colours.

    Raises:
      PadirError: matplotlib is not installed.
    """
    with styled_figure(font_size=9) as figure:
        draw(figure, *args, **options)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
    from PIL import Image  # installed with matplotlib

    # 256 colours take a third of the bytes, and pages and docs hold many pictures.
    small = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def draw_maps(
    figure: Figure,
    maps: Mapping[str, Float[np.ndarray, "J H L X"]],
    target: Sequence[str],
    keys: Mapping[str, Sequence[str]],
) -> None:
    """Draws attention maps: a row for every decoder layer, a column for every kind of attention; heads averaged.

    Args:
      maps: attention [layer, head, query, key] by the kind's name.
      keys: the token at each key of a kind.
    """
    layers = next(iter(maps.values())).shape[0]
    widths = [len(keys[name]) for name in maps]
    figure.set_size_inches(1.6 + 0.27 * sum(widths), layers * (1.1 + 0.25 * len(target)))
    panels = figure.subplots(layers, len(maps), squeeze=False, width_ratios=widths)
    for layer, (column, (name, attn_JHLX)) in itertools.product(range(layers), enumerate(maps.items())):
        axes = panels[layer][column]
        heat = axes.imshow(attn_JHLX[layer].mean(0), cmap="Blues", vmin=0.0, interpolation="nearest")
        figure.colorbar(heat, ax=axes, shrink=0.8).ax.tick_params(labelsize=6)
        axes.set_title(f"{name}, layer {layer + 1}", fontsize=9)
        axes.set_xticks(range(len(keys[name])), _short(keys[name]), rotation=90, fontsize=7)
        axes.set_yticks(range(len(target)), _short(target) if column == 0 else [], fontsize=7)


def draw_reliability(figure: Figure, curves: Mapping[str, Reliability]) -> None:
    """Accuracy of tokens (upper panel) and share of tokens (lower panel) against the model's confidence in them.

    Bins of fewer than 20 tokens are shown in the lower panel only: their accuracy would be noise.
    """
    import matplotlib

    figure.set_size_inches(4.6, 4.8)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3.4, 1))
    top.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle=":")
    for number, (name, curve) in enumerate(curves.items()):
        colour = matplotlib.colormaps["viridis_r"](0.1 + 0.85 * number / max(1, len(curves) - 1))
        label = f"{name}, error {100 * curve.error:.1f}"
        accuracy_Q = np.where(curve.count_Q < 20, np.nan, curve.accuracy_Q)
        top.plot(curve.confidence_Q, accuracy_Q, "o-", color=colour, markersize=4, label=label)
        bottom.plot(curve.confidence_Q, curve.count_Q / curve.count_Q.sum(), "o-", color=colour, markersize=3)
    top.set(ylabel="share that is the reference's", xlim=(0, 1), ylim=(0, 1))
    top.legend(frameon=False, fontsize=8, loc="upper left")
    bottom.set(xlabel="probability when written", ylabel="share of tokens", yscale="log")
    for axes in (top, bottom):
        axes.grid(alpha=0.25)


def draw_audit(figure: Figure, rows: Sequence[Mapping[str, Any]], own: Set[str]) -> None:
    """Draws KL by passes for each sampler that may write every right answer from masks; a panel for each family.

    Args:
      own: samplers whose lines are thick.
    """
    of_masks = [row for row in rows if row["canvas"] == "mask"]
    names = list(dict.fromkeys(row["strategy"] for row in of_masks if math.isfinite(row["kl"])))
    families = list(dict.fromkeys(row["targets"] for row in rows))
    figure.set_size_inches(4.6 * len(families), 4.2 + 0.12 * len(names))
    panels = figure.subplots(1, len(families), squeeze=False)[0]
    for axes, family in zip(panels, families, strict=True):
        mine = [row for row in of_masks if row["targets"] == family]
        best = {row["steps"]: row["kl"] - row["over_best"] for row in mine if math.isfinite(row["kl"])}
        for number, name in enumerate(names):
            line = [row for row in mine if row["strategy"] == name]
            axes.plot(
                [row["steps"] for row in line],
                [row["kl"] if math.isfinite(row["kl"]) else math.nan for row in line],
                label=name,
                linestyle="-" if number < 6 else "--",
                linewidth=3 if name in own else 1.2,
                markersize=4,
                color=COLOURS[number % 6],
                marker=_MARKERS[number % 7],
            )
        axes.plot(sorted(best), [best[steps] for steps in sorted(best)], color="black", ls=":", label="best schedule")
        axes.set(title=family, xlabel="decoder passes", ylabel="KL from the truth, nats", ylim=(0, None))
        axes.grid(alpha=0.25)
    found = panels[0].get_legend_handles_labels()
    figure.legend(*found, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _short(words: Sequence[str], most: int = 11) -> list[str]:
    """Tokens cut to a length, with dollar signs escaped, which would begin a formula."""
    cut = (word if len(word) <= most else f"{word[: most - 1]}…" for word in words)
    return [word.replace("$", r"\$") for word in cut]
