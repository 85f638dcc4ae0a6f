"""Attention of neighbours that stutter and of others (the paper's Tables 4 and 5), and attention maps."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from padir.analysis import figures, pairs, refinement, stutter
from padir.analysis.passes import Pass, pieces
from padir.analysis.subjects.study import AnalysisOptions, Findings, Row, Tell
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.reporting.page import Section

COLUMNS = ("pass", "measure", "stutter_mean", "stutter_sd", "other_mean", "other_sd", "auc", "auc_within")


def study(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures the attention of neighbours in the pass that writes a draft and in the pass that reads it."""
    rows: list[Row] = []
    sections, counts = [], {}
    for when in stutter.WHEN:
        found = stutter.neighbours(translator, test_set, decoding, step=decoding.num_steps, when=when)
        table, count, number = found.table(), int(found.stutter_P.sum()), len(found.stutter_P)
        rows += [{"pass": when, **row} for row in table]
        counts = {"neighbours": number, "stutter": count}
        tell(f"pass that {when} the draft: {count:,} of {number:,} neighbours stutter")
        sections.append(_section(when, found, table))
    sections.append(_maps_section(translator, test_set, decoding, options.examples))
    return Findings(rows, counts, sections)


def _section(when: str, found: stutter.Neighbours, table: list[Row]) -> Section:
    count, number = int(found.stutter_P.sum()), len(found.stutter_P)
    values = {pairs.LABELS[kind]: found.values[f"{kind}_avg"] for kind in pairs.KINDS if f"{kind}_avg" in found.values}
    pictures = {}
    if 1 < count < number - 1:
        pictures[when] = figures.png(figures.draw_groups, values, found.stutter_P, ("stutter", "other"))
    return Section(
        f"Tables 4 and 5: the pass that {when} the draft",
        f"{count:,} of {number:,} pairs of neighbours hold the same token. Mean and standard deviation of each measure;"
        " auc is the probability that a stuttering pair has the higher value, auc within the same for pairs of one"
        " sentence, with 95 % intervals over sentences. Pictures: means over heads.",
        pictures,
        table,
    )


def _maps_section(translator: Translator, test_set: TestSet, decoding: Decoding, examples: int) -> Section:
    pictures = {}
    for number, (one, row, _) in enumerate(refinement.examples(translator, test_set, decoding, examples), 1):
        maps, words, source = _maps(translator, one, row)
        keys = {kind: source if kind == "cross" else words for kind in maps}
        pictures[f"maps {number}"] = figures.png(figures.draw_maps, maps, words, keys)
        if number == 1:
            pictures["heads"] = figures.png(figures.draw_heads, maps)
    text = "Rows are queries, columns keys. Positions are labelled with the tokens that the pass wrote there."
    return Section("Attention maps", text, pictures)


def _maps(translator: Translator, one: Pass, row: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """The attention of the pass that wrote a sentence's draft, the draft's tokens, and the source's tokens."""
    maps = stutter.attention_of(translator, one, "writes")
    length = int(one.length_B[row])
    source_L = one.batch.source_BS[row]
    # [LENGTH] and padding are never attended to.
    there_S = np.asarray(jax.device_get(one.batch.encoded.segment_BS))[row] > 0
    attn = {"self": maps.own_RJHLL[row][..., :length, :length]}
    if maps.positional_RJHLL is not None:
        attn["positional"] = maps.positional_RJHLL[row][..., :length, :length]
    attn["cross"] = maps.cross_RJHLS[row][..., :length, :][..., there_S]
    return attn, pieces(translator, one.tokens_TBL[-1, row, :length]), pieces(translator, source_L[there_S])
