"""Pictures of attention, refinement and audits as PNG files."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from padir.reporting.tables import COLOURS, styled_figure
from padir.studies.analysis.association import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is an extra

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
        heat = _heat(axes, attn_JHLX[layer].mean(0), "Blues", high=None)
        figure.colorbar(heat, ax=axes, shrink=0.8).ax.tick_params(labelsize=6)
        axes.set_title(f"{name}, layer {layer + 1}", fontsize=9)
        axes.set_xticks(range(len(keys[name])), _short(keys[name]), rotation=90, fontsize=7)
        axes.set_yticks(range(len(target)), _short(target) if column == 0 else [], fontsize=7)


def draw_groups(
    figure: Figure, values: Mapping[str, Float[np.ndarray, " P"]], label_P: Bool[np.ndarray, " P"], names: Sequence[str]
) -> None:
    """A panel for each measure: its distributions among pairs with the label (first) and without."""
    figure.set_size_inches(2.3 * len(values), 3.4)
    panels = figure.subplots(1, len(values), squeeze=False)[0]
    for axes, (title, value_P) in zip(panels, values.items(), strict=True):
        parts = [value_P[label_P], value_P[~label_P]]
        drawn = axes.violinplot(parts, showextrema=False, widths=0.85, points=120)
        for body, colour in zip(drawn["bodies"], (COLOURS[1], COLOURS[0]), strict=True):
            body.set(facecolor=colour, edgecolor="none", alpha=0.55)
        for place, part in enumerate(parts, 1):
            low, middle, high = np.percentile(part, [25, 50, 75])
            axes.vlines(place, low, high, color="0.2", linewidth=3)
            axes.plot(place, middle, "o", color="white", markersize=4, markeredgecolor="0.2")
        axes.set_xticks([1, 2], names)
        axes.set_title(title, fontsize=9)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("value of the measure for a pair")
    figure.supxlabel("bars: the middle half; dots: medians", fontsize=8, color="0.35")


def draw_refinement(
    figure: Figure, drafts: Sequence[tuple[Sequence[Sequence[str]], Float[np.ndarray, "T L"], Bool[np.ndarray, "T L"]]]
) -> None:
    """Draws a panel for each sentence: a row for every step, a cell for every token, dark for low probability.

    Args:
      drafts: (tokens, probability when written, whether it changed in this step) of every step, the noise first.
    """
    widest = max(len(words[0]) for words, _, _ in drafts)
    heights = [len(words) for words, _, _ in drafts]
    figure.set_size_inches(1.2 + 0.78 * widest, 0.55 * len(drafts) + 0.34 * sum(heights))
    panels = figure.subplots(len(drafts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (words, prob_TL, changed_TL) in zip(panels, drafts, strict=True):
        _heat(axes, prob_TL, "YlGnBu_r", high=1.0, aspect="auto")
        axes.set_xlim(-0.5, widest - 0.5)
        for (t, line), at in itertools.product(enumerate(words), range(len(words[0]))):
            prob = prob_TL[t, at]
            weight = "bold" if changed_TL[t, at] else "normal"
            colour = "0.55" if np.isnan(prob) else "white" if prob < 0.5 else "0.1"
            axes.text(at, t, _short([line[at]])[0], ha="center", va="center", fontsize=7, color=colour, weight=weight)
        axes.set_xticks([])
        axes.set_yticks(range(len(words)), ["start", *(f"step {t}" for t in range(1, len(words)))], fontsize=7)
        axes.spines[:].set_visible(False)
    figure.supxlabel("dark: the model was unsure; bold: changed in this step; grey: nothing written", fontsize=8)


def draw_steps(
    figure: Figure, changed_T: Sequence[float], settled_T: Sequence[float], errors_T: Sequence[float]
) -> None:
    """Shares of tokens that change and of sentences that have settled (left) and calibration error (right), by step."""
    figure.set_size_inches(8.4, 3.2)
    left, right = figure.subplots(1, 2)
    step_T = range(1, len(changed_T) + 1)
    left.plot(step_T, [100 * x for x in changed_T], "o-", color=COLOURS[1], label="tokens that change")
    left.plot(step_T, [100 * x for x in settled_T], "s-", color=COLOURS[0], label="sentences that stay as they were")
    left.set(xlabel="step", ylabel="per cent", ylim=(0, 103))
    left.legend(frameon=False, fontsize=8)
    right.plot(step_T, [100 * x for x in errors_T], "D-", color=COLOURS[2])
    right.set(xlabel="step", ylabel="expected calibration error, points", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.set_xticks(list(step_T))


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


def draw_outcomes(
    figure: Figure, rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str], against: str = "steps"
) -> None:
    """A panel for each metric in `labels`: its value against the number of steps, a line for each strategy.

    Args:
      against: the column on the horizontal axis: "steps", the number of passes that a strategy was given, or "step",
        the number of a step in one decoding run.
    """
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    figure.set_size_inches(4.4 * len(labels), 3.6 + 0.17 * len(strategies))
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    counts = sorted({row[against] for row in rows})
    for axes, (key, label) in zip(panels, labels.items(), strict=True):
        for number, strategy in enumerate(strategies):
            mine = [row for row in rows if row["strategy"] == strategy]
            value = [r.get(key, np.nan) for r in mine]
            line = "-" if number < 6 else "--"
            axes.plot([r[against] for r in mine], value, label=strategy, markersize=4, ls=line, **_style(number))
        axes.set(xlabel="step" if against == "step" else "decoder passes at most (logarithmic)", ylabel=label)
        axes.set_xscale("linear" if against == "step" else "log")
        if key != "bleu":  # differences of BLEU would not be seen on an axis from 0
            axes.set_ylim(bottom=0)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    _legend(figure, panels)


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
                **_style(number),
            )
        axes.plot(sorted(best), [best[steps] for steps in sorted(best)], color="black", ls=":", label="best schedule")
        axes.set(title=family, xlabel="decoder passes", ylabel="KL from the truth, nats", ylim=(0, None))
        axes.grid(alpha=0.25)
    _legend(figure, panels, 3)


def _style(number: int) -> dict[str, str]:
    return {"color": COLOURS[number % 6], "marker": _MARKERS[number % 7]}


def _legend(figure: Figure, panels: np.ndarray, columns: int = 2) -> None:
    found = panels[0].get_legend_handles_labels()
    figure.legend(*found, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _heat(
    axes: Axes,
    value: np.ndarray,
    colours: str,
    high: float | None,
    aspect: Literal["equal", "auto"] = "equal",
) -> Any:
    return axes.imshow(value, cmap=colours, vmin=0.0, vmax=high, aspect=aspect, interpolation="nearest")


def _short(words: Sequence[str], most: int = 11) -> list[str]:
    """Tokens cut to a length, with dollar signs escaped, which would begin a formula."""
    cut = (word if len(word) <= most else f"{word[: most - 1]}…" for word in words)
    return [word.replace("$", r"\$") for word in cut]
