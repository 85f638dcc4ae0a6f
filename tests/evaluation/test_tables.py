"""Rows as JSON and Markdown, and the paper's layout."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses

from padir.decoding import Decoding, MinimumBayesRisk, Shortlist
from padir.evaluation import Evaluation, Row, TestSet, describe_row, paper_tables, read_rows, to_markdown
from padir.evaluation.report import cells
from padir.evaluation.rows import label, system_columns
from padir.evaluation.systems import named
from padir.metrics.scores import Score
from padir.options import OPTIONS
from padir.refinement import Mask, MaskPredict, Padir, Uniform

TEST_SET = TestSet("toy", "de", "en", ["a", "b"], ["c", "d"])


def row(model="m", steps=4, bleu=30.0, causal=False, oracle=False, note="", **decoding):
    settings = {"strategy": Padir(), "canvas": Mask(1.0)} | decoding
    scores = {"bleu": Score("bleu", bleu, "tok:13a"), "stutter": Score("stutter", 1.5, "per:1000")}
    scores |= {"length_recall_1": Score("length_recall_1", 40.0, "k:1"), "hypotheses": Score("hypotheses", 5.0, "")}
    evaluation = None if note else Evaluation(scores, ["x", "y"])
    how = Decoding(**decoding) if causal else Decoding(num_steps=steps, **settings)
    return describe_row(Row(model, how, evaluation, note, causal, "of step 9", oracle_lengths=oracle), TEST_SET)


@dataclasses.dataclass(frozen=True)
class Mine:
    name: str
    needs = frozenset()

    def __call__(self, sources, hypotheses, *, target_language):
        return [[0.0 for _ in each] for each in hypotheses]


def test_every_option_that_changes_results_stands_in_the_rows():
    """The others: `search`, `weights` and `rerank` hold these, a row has one mode, and listing texts changes none."""
    elsewhere = {"beam", "length_penalty", "temperature", "precision", "length_normalization", "mode", "n_best"}
    assert OPTIONS.keys() - row().keys() == elsewhere


def test_json_says_how_it_was_decoded():
    described = row(num_lengths=5, length_window=True, rerank=MinimumBayesRisk(), seed=3)
    assert json.loads(json.dumps(described)) == described
    assert described["strategy"] == {"name": "padir", **dataclasses.asdict(Padir())}
    assert row(rerank=Mine("causal"))["rerank"] == {"name": f"{__name__}:Mine"}  # its field is not the rule's name
    assert described["rerank"] == {"name": "mbr", "utility": "chrf"}
    expected = {"num_lengths": 5, "num_drafts": 1, "num_steps": 4, "seed": 3, "task": "toy", "split": "test"}
    assert (expected | {"length_window": True}).items() <= described.items()
    assert described["scores"]["bleu"] == {"value": 30.0, "signature": "tok:13a"}
    sampled = row(causal=True, temperature=0.5, num_drafts=3)
    assert sampled["num_steps"] is None and sampled["strategy"] is None
    assert sampled["num_drafts"] == sampled["search"]["size"] == 3  # an option of both modes


def test_only_columns_that_differ_are_shown():
    rows = [row(), row(steps=10)]
    assert system_columns(rows) == ["model", "hypotheses", "steps"]
    assert system_columns([*rows, row(strategy=MaskPredict())])[1] == "strategy"
    assert system_columns([*rows, row(oracle=True)])[1] == "lengths"
    for num_lengths in (1, 5):  # one length has no neighbours
        length_window = [row(num_lengths=num_lengths, length_window=each) for each in (True, False)]
        assert ("lengths" in system_columns(length_window)) == (num_lengths == 5)
    assert system_columns([*rows, row(rerank=MinimumBayesRisk())])[1] == "rerank"
    columns, lines = cells(rows)
    assert columns == ["model", "hypotheses", "steps", "bleu", "stutter"]
    assert lines == [["m", "1", "4", "30.00", "1.50"], ["m", "1", "10", "30.00", "1.50"]]
    assert cells([row(num_drafts=2, prefix_beam=3)])[1][0][1] == "6"  # hypotheses: three of each draft


SHORTLIST = Shortlist("ab", np.zeros((9, 4), np.int32), np.arange(3, 9), 5)
# What makes two rows, for each option of which tables take several values.
SEVERAL: dict[str, tuple[dict[str, Any], ...]] = {
    "mode": ({"causal": True, "mode": "causal"}, {"mode": "refine"}),
    "num_steps": ({"steps": 1}, {"steps": 2}),
    "strategy": ({}, {"strategy": MaskPredict()}),
    "num_lengths": ({}, {"num_lengths": 2}),
    "length_min_p": ({"num_lengths": 2}, {"num_lengths": 2, "length_min_p": 0.5}),
    "prefix_beam": ({}, {"prefix_beam": 2}),
    "rerank": ({"causal": True, "beam": 3}, {"causal": True, "beam": 3, "rerank": MinimumBayesRisk()}),
    "blank_penalty": ({}, {"blank_penalty": 1.0}),
    "beam": ({"causal": True, "beam": 1}, {"causal": True, "beam": 2}),
    "shortlist": ({}, {"shortlist": SHORTLIST}),
    "fusion": ({}, {"fusion": "bigrams"}),
    "precision": ({}, {"precision": "int8"}),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [option.name for option in OPTIONS.values() if option.several])
def test_rows_with_different_options_have_different_labels(name):
    """An option with `several` has a column (`SYSTEM`), or is in the model's name (`named`)."""
    translator: Any = SimpleNamespace(card=SimpleNamespace(config=SimpleNamespace(dual=True)))
    ways = [{name: value for name, value in way.items() if name not in ("causal", "steps")} for way in SEVERAL[name]]
    models = [named("m", translator, Decoding(**way)) for way in ways]
    rows = [row(model, **way) for model, way in zip(models, SEVERAL[name], strict=True)]
    assert len({label(each, rows) for each in rows}) == 2


def test_every_table_says_whether_repeats_were_dropped():
    padir, mask_predict = row(), row(strategy=MaskPredict())
    assert "- drop_repeats: yes" in to_markdown([padir]) and "- drop_repeats: no" in to_markdown([mask_predict])
    assert "drop_repeats: yes" in paper_tables([padir])
    for rows in ([padir, mask_predict], [padir, row("ar", causal=True)]):
        columns, lines = cells(rows)
        assert [line[columns.index("drop_repeats")] for line in lines] == ["yes", "no"]
        assert "drop_repeats:" not in paper_tables(rows)


def test_a_line_about_a_search_says_nothing_of_repeats():
    rows = [row(), row("ar", causal=True, beam=1)]
    assert [label(each, rows) for each in rows] == [
        "m, padir, drop_repeats yes, 1 hyp., T=4",
        "ar, beam(size=1), 1 hyp., T=N",
    ]


def test_settings_that_are_not_the_default_are_named():
    rows = [row(), row(strategy=Padir(remask="start")), row(strategy=MaskPredict())]
    assert [line[1] for line in cells(rows)[1]] == ["padir", "padir(remask=start)", "mask_predict"]


def test_a_shortlist_is_shown():
    rows = [row(), row(shortlist=SHORTLIST)]
    assert [r["shortlist"] for r in rows] == [None, {"candidates": 4, "frequent": 5, "sha256": SHORTLIST.sha256}]
    assert "shortlist" not in system_columns(rows[:1]) + system_columns(rows[1:])
    assert [line[1] for line in cells(rows)[1]] == ["-", "4 candidates, 5 frequent"]
    assert "- shortlist: 4 candidates, 5 frequent" in to_markdown(rows[1:]).splitlines()
    assert "shortlist" not in to_markdown(rows[:1])
    assert "| Model | Shortlist |" in paper_tables(rows, ["bleu"])


def test_a_row_without_figures_says_why():
    columns, lines = cells([row(), row(note="it needs a rejecter head")])
    assert columns[-1] == "note" and [line[-1] for line in lines] == ["", "it needs a rejecter head"]
    assert lines[1][-3:-1] == ["-", "-"]


def test_markdown():
    text = to_markdown([row(), row(steps=10, bleu=31.234)])
    lines = text.splitlines()
    assert lines[0] == "Test set: toy (de-en, 2 sentences)"
    assert lines[2] == "| # | model | hypotheses | steps | BLEU | stutter |"
    assert lines[3] == "| ---: | --- | ---: | ---: | ---: | ---: |"
    assert lines[5] == "| 2 | m | 1 | 10 | 31.23 | 1.50 |"
    assert "- strategy: padir" in lines and "- bleu: tok:13a" in lines
    assert {"- weights of m: of step 9", "- length recall of m on toy: 40.0 % at 1"} <= {*lines}


def test_the_papers_layout_joins_test_sets():
    other = [entry | {"task": "wmt"} for entry in (row("PaDIR", bleu=28.61), row("AR", causal=True, bleu=29.54))]
    rows = [row("AR", causal=True, bleu=33.5), row("PaDIR", bleu=33.49), row("PaDIR", steps=10, bleu=33.63), *other]
    text = paper_tables(rows, ["bleu", "bleurt", "stutter"])
    lines = text.splitlines()
    assert lines[0] == "**BLEU**" and "**stutter**" in lines and "BLEURT" not in text
    table = [line.split(" | ") for line in lines[2:7]]
    assert table[0] == ["| Model", "Strategy", "Drop repeats", "# Hyp.", "Steps", "toy", "wmt |"]
    assert table[2] == ["| AR", "beam", "no", "5", "N", "33.50", "29.54 |"]
    assert table[3] == ["| PaDIR", "padir", "yes", "1", "4", "33.49", "28.61 |"]
    assert table[4] == ["| ", "padir", "yes", "1", "10", "33.63", "- |"]


def test_no_row_is_lost_where_two_have_the_same_place():
    lengths = {"num_lengths": 3}, {"num_drafts": 3}
    several = [row(**lengths[0]), row(**lengths[1]), row(seed=1), row(canvas=Uniform())]
    lines = paper_tables(several, ["bleu"]).splitlines()
    assert lines[2].startswith("| Model | Lengths | Canvas | Seed | # Hyp. |") and len(lines) == 11


@pytest.mark.parametrize(
    ("changes", "metric", "words"),
    [
        ({"model": "n"}, "bleurt", "no row has any of bleurt"),
        ({}, "bleu", "two rows have the system m, 1 hyp., T=4 and the test set toy: leave one out"),
        ({"model": "n", "sha256": "0"}, "bleu", "'toy' stands for different test sets"),
    ],
)
def test_rows_that_make_no_table_are_refused(changes, metric, words):
    refuses(paper_tables, words, [row(), row() | changes], [metric])


def test_splits_of_a_corpus_are_test_sets_of_their_own():
    lines = paper_tables([row(), row() | {"split": "validation"}], ["bleu"]).splitlines()
    assert lines[2] == "| Model | # Hyp. | Steps | toy | toy validation |"


def test_files_are_read_older_ones_too(tmp_path):
    old = {"num_steps": 1, "num_lengths": 5, "num_drafts": 1, "rerank": row()["rerank"]}
    old["scores"] = {"bleu": {"value": 22.0, "signature": "s"}}
    (tmp_path / "old.json").write_text(json.dumps([old]))
    (tmp_path / "new.json").write_text(json.dumps([row()]))
    rows = read_rows([str(tmp_path / "old.json"), str(tmp_path / "new.json")])
    assert [r["model"] for r in rows] == ["old", "m"]
    assert "| old | 5 | 1 | 22.00 | - |" in paper_tables(rows, ["bleu"])
    for bad in ("[" * 100_000, '{"a":' * 100_000, '{"a": 1}', "{}", "[]"):
        (tmp_path / "bad.json").write_text(bad)
        refuses(read_rows, "holds no rows", [str(tmp_path / "bad.json")])
    refuses(read_rows, "cannot read", [str(tmp_path / "nothing.json")])
