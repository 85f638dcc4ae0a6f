"""Refinement step by step, calibration, and the command that shows all of it."""

import dataclasses
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.fakes import FIRST, IDS, conditionals
from support.refusals import refused
from support.small_corpus import Numbers
from support.tiny_model import random_model_dir, random_translator

from padir import Decoding
from padir.cli import main
from padir.evaluation import TestSet, evaluate
from padir.refinement import Cmlm, Mask, MaskPredict, parse_strategy
from padir.refinement import draft as fresh_draft
from padir.refinement import loop as refine
from padir.studies.analysis import analyses, refining, study
from padir.studies.analysis.association import reliability
from padir.studies.analysis.study import first_sentences, reference_tokens, refined


def test_calibration_of_bins_that_can_be_checked_by_hand():
    confidence_P = np.array([0.05, 0.15, 0.15, 0.92, 0.98, 1.0])
    right_P = np.array([False, True, False, True, True, False])
    curve = reliability(confidence_P, right_P)
    assert curve.count_Q.tolist() == [1, 2, 3]
    assert_allclose(curve.confidence_Q, [0.05, 0.15, 2.9 / 3])
    assert_allclose(curve.accuracy_Q, [0, 0.5, 2 / 3])
    assert curve.error == pytest.approx((0.05 + 2 * 0.35 + 3 * 0.3) / 6)
    assert curve.accuracy == pytest.approx(0.5) and curve.confidence == pytest.approx(confidence_P.mean())


def test_who_is_right_as_often_as_they_say_has_no_error():
    rng = np.random.default_rng(0)
    confidence_P = rng.random(40_000)
    drawn_P = rng.random(40_000) < confidence_P
    assert reliability(confidence_P, drawn_P).error < 0.01
    assert reliability(confidence_P, rng.random(40_000) < confidence_P**2).error > 0.1


def test_steps_of_a_model_that_knows_the_joint_distribution():
    """Every reference of a joint of ten equal parts, refined by its exact conditionals: what a step must print follows
    from sums over the joint. Of masks, step 1 writes the likeliest values and is calibrated; later confidence is that
    of a model which has been told its own draft, and is too high by as much as the sums say."""
    joint_VVV = np.zeros((2, 2, 2))
    for state, parts in {(0, 0, 0): 5, (1, 1, 0): 2, (0, 1, 1): 2, (1, 0, 1): 1}.items():
        joint_VVV[state] = parts
    decoder = conditionals(joint_VVV / 10)
    key_B = jax.random.split(jax.random.key(0), 1)
    draft = fresh_draft(key_B, jnp.array([4]), 4, Mask(), IDS)
    out = refine.refine(key_B, draft, decoder, MaskPredict(), num_steps=2, traced_steps=2)
    tokens_TL, score_TL = (np.asarray(x)[:, 0, :3] for x in (out.tokens_TBL, out.scores_TBL))
    references = [s for s in itertools.product(range(2), repeat=3) for _ in range(int(joint_VVV[s]))]
    first, second = refining.tally(
        refining.SentenceRun(tokens_TL, score_TL, FIRST + np.array(s), ["right", "mixed"]) for s in references
    )
    # Step 1: 0 is the likelier everywhere, by 7:3, 6:4 and 7:3. The schedule hides the least certain position.
    assert np.isnan(score_TL[1]).tolist() == [False, True, False]
    assert first.reliability.count_Q.sum() == 2 * len(references)
    assert first.reliability.confidence == pytest.approx(0.7)
    assert first.reliability.accuracy == pytest.approx(0.7)
    assert first.reliability.error == pytest.approx(0, abs=1e-6)
    # Step 2 writes the second, given 0 . 0: it is 0 for certain, and right 6 times in 10.
    assert tokens_TL[2].tolist() == [FIRST] * 3
    assert second.reliability.accuracy == pytest.approx((0.7 + 0.6 + 0.7) / 3)
    assert second.reliability.error == pytest.approx((1.0 - 0.6) / 3, abs=1e-6)
    assert (first.changed, second.changed) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (first.equal, second.equal) == (0.0, pytest.approx(0.5))  # what is masked is not equal
    assert (first.right, first.mixed, second.right, second.mixed) == (1.0, 0.0, 0.0, 1.0)
    assert first.settled == second.settled == 0.0


def test_a_step_that_wrote_nothing_has_no_calibration():
    """And a sentence that does not change is settled."""
    tokens_TL = np.array([[5, 6], [5, 6]])
    (step,) = refining.tally([refining.SentenceRun(tokens_TL, np.full((2, 2), np.nan), np.array([5, 6]))])
    assert step.reliability is None and step.settled == 1.0 and step.equal == 0.0 and step.right is None
    assert "calibration_error" not in step.row()


@pytest.fixture(scope="module")
def numbers(tokenizer, translator):
    """(a model of random tokens, one of masks, test set); neither has learned anything."""
    pairs = list(Numbers().pairs("validation"))[:6]
    test_set = TestSet("numbers", "de", "en", [s for s, _ in pairs], [t for _, t in pairs])
    masks = random_translator(tokenizer, corruption=Cmlm(), strategy=MaskPredict())
    return translator, masks, test_set


def test_steps_count_what_changes(numbers):
    translator, _, test_set = numbers
    decoding = Decoding(num_steps=3, batch_size=4)
    steps = refining.step_metrics(translator, test_set, decoding)
    targets = reference_tokens(translator, test_set)
    changed, right, confidence, written, free = np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3), 0
    for one in refined(translator, test_set, decoding, [len(t) for t in targets]):
        for row, number in one.rows():
            size = len(targets[number]) - 1
            assert one.length_B[row] == size + 1
            free += size
            for t in range(3):
                before, after = (one.tokens_TBL[t + k, row, :size].tolist() for k in (0, 1))
                changed[t] += sum(x != y for x, y in zip(before, after, strict=True))
                # Stutter of the first step is remasked: what stands there was never written.
                there = [i for i in range(size) if one.score_TBL[t + 1, row, i] < 0]
                written[t] += len(there)
                right[t] += sum(after[i] == targets[number][i] for i in there)
                confidence[t] += sum(np.exp(float(one.score_TBL[t + 1, row, i])) for i in there)
    assert free == sum(len(t) - 1 for t in targets)
    assert_allclose([s.changed for s in steps], changed / free)
    assert_allclose([s.reliability.count_Q.sum() for s in steps], written)
    assert_allclose([s.reliability.accuracy for s in steps], right / written, rtol=1e-6)
    assert_allclose([s.reliability.confidence for s in steps], confidence / written, rtol=1e-5)
    assert changed[0] > 0 and written[-1] == free


def test_hidden_positions_do_not_count_as_predictions(numbers):
    _, masks, test_set = numbers
    steps = refining.step_metrics(masks, test_set, Decoding(num_steps=4))
    counts = [step.reliability.count_Q.sum() for step in steps]
    assert counts == sorted(counts) and counts[0] < counts[-1]
    assert counts[-1] == sum(len(t) - 1 for t in reference_tokens(masks, test_set))


def test_every_strategy_that_a_model_can_run_is_found(numbers):
    translator, masks, _ = numbers
    names, refused = refining.runnable(translator, Decoding())
    assert "padir" in names and "sundae:temperature=0.0,order=uncertain" in names
    assert set(refused) == {"easy_first", "rejecter", "prediction_rejecter", "block_gibbs", "independent_parallel"}
    assert "mask" in refused["block_gibbs"]
    names, refused = refining.runnable(masks, Decoding())
    assert set(refused) == {"easy_first", "rejecter", "prediction_rejecter"}
    assert "independent_parallel:temperature=0.0" in names


def test_outcomes_are_those_of_evaluate(numbers):
    _, masks, test_set = numbers
    names = ["mask_predict", "block_gibbs:temperature=0.0"]
    rows = refining.outcomes(masks, test_set, Decoding(), names, [1, 3])
    assert [(row["strategy"], row["steps"]) for row in rows] == [(name, count) for name in names for count in (1, 3)]
    one = refining.with_strategy(masks, Decoding(num_steps=3), parse_strategy(names[1]))
    figures = evaluate(masks, test_set, one).metrics
    assert rows[-1]["passes"] == figures["passes"] == 3.0
    assert rows[-1]["bleu"] == figures["bleu"]
    assert not any(row["drop_repeats"] for row in rows)


def test_outcomes_drop_repeats_for_all_strategies_or_for_none(numbers):
    translator, _, test_set = numbers
    unroll = "sundae:temperature=0.0,share=1.0"
    for drop, expected in ((None, True), (False, False)):
        rows = refining.outcomes(translator, test_set, Decoding(drop_repeats=drop), ["padir:remask=none", unroll], [1])
        assert [row["drop_repeats"] for row in rows] == [expected] * 2
        assert rows[0]["bleu"] == rows[1]["bleu"] and "stutter_before" in rows[0]  # one step writes the argmax


def test_sentences_are_the_first(numbers):
    *_, test_set = numbers
    assert first_sentences(test_set, 2).sources == test_set.sources[:2]
    assert first_sentences(test_set, None) is test_set
    with refused("at least 1, got 0"):
        first_sentences(test_set, 0)
    empty = dataclasses.replace(test_set, sources=[" "], references=[""])
    with refused("no sentences"):
        list(refined(numbers[0], empty, Decoding()))


def test_of_nothing_there_are_no_figures():
    with refused("predictions bins got 0"):
        reliability(np.zeros(0), np.zeros(0, bool))
    with refused("no sentences"):
        refining.tally([])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # else the command would choose a folder
    (tmp_path / "t.de").write_text("eins zwei drei\nvier fünf & sechs\nneun\n")
    (tmp_path / "t.en").write_text("one two three\nfour five six\nnine\n")
    return ["--languages", "de-en", "--test", str(tmp_path / "t.de"), str(tmp_path / "t.en")]


@pytest.mark.parametrize(
    ("subject", "more", "pictures", "tables"),
    [
        pytest.param("attention", ["--num_steps", "2", "--set", "examples=1"], {"maps_1"}, 2, marks=pytest.mark.slow),
        (
            "refinement",
            ["--num_steps", "2", "--set", "examples=1", "strategies=padir mask_predict", "passes=1,2"],
            {"reliability"},
            4,
        ),
    ],
)
def test_the_command_writes_figures_pictures_and_a_page(
    subject, more, pictures, tables, model_dir, corpus, tmp_path, capsys
):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "out"
    arguments = ["analyse", subject, "--model", str(model_dir), *corpus, "--output", str(folder)]
    assert main([*arguments, *more]) == 0
    written = json.loads((folder / f"{subject}.json").read_text())
    assert written["sentences"] == 3 and written["subject"] == subject
    assert written["rows"]
    found = {path.stem.removeprefix(f"{subject}_") for path in folder.glob("*.png")}
    assert found == pictures
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in folder.glob("*.png"))
    page = (folder / f"{subject}.html").read_text()
    assert page.count("data:image/png;base64,") == len(found)
    assert page.count("<table>") == tables
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    assert subject in capsys.readouterr().out


def test_drafts_are_shown_step_by_step(numbers):
    """Each token with the probability that the model gave it when it wrote it."""
    translator, _, test_set = numbers
    decoding = Decoding(num_steps=3, batch_size=4)
    (section,) = refining._drafts_section(translator, test_set, decoding, 1)
    (one, row, number), *_ = study.examples(translator, test_set, decoding, 1)
    size, passes = int(one.length_B[row]) - 1, int(one.passes_B[row])
    assert [each["step"] for each in section.rows] == [*range(1, passes + 1)]
    for each in section.rows:
        tokens_L, before_L = (one.tokens_TBL[step, row, :size] for step in (each["step"], each["step"] - 1))
        words = each["draft"].split()
        assert words[::2] == study.pieces(translator, tokens_L) and each["sentence"] == number + 1
        assert each["changed"] == sum(tokens_L != before_L)
        for text, log_prob in zip(words[1::2], one.score_TBL[each["step"], row, :size], strict=True):
            printed = np.nan if text == "(-)" else float(text[1:-1])
            assert printed == pytest.approx(np.exp(log_prob), rel=1e-2, nan_ok=True)
    assert refining._drafts_section(translator, test_set, decoding, 0) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["refinement", "--set", "strategies=padir paddir", "--num_steps", "1"], "no strategy is called 'paddir'"),
        (["refinement", "--set", "passes=0"], "passes must be at least 1"),
        (["refinement", "--set", "strategies=block_gibbs", "--num_steps", "1"], "behind a mask"),
        (["attention", "--set", "sentences=0"], "at least 1, got 0"),
        (
            ["attention", "--set", "strategies=padir"],
            "strategies applies only to refinement",
        ),
        (["attention", "--set", "passes=4"], "passes applies only to refinement"),
        (["attention", "--num_drafts", "5"], "num_drafts applies only to refinement"),
    ],
)
def test_bad_options_end_with_a_message(arguments, message, model_dir, corpus, capsys):
    pytest.importorskip("matplotlib")
    assert main(["analyse", arguments[0], "--model", str(model_dir), *corpus, *arguments[1:]]) == 2
    assert message in capsys.readouterr().err


def test_a_test_set_of_the_other_direction_is_refused(model_dir, corpus, capsys):
    pytest.importorskip("matplotlib")
    *_, source, target = corpus
    other = ["--languages", "en-de", "--test", target, source]
    assert main(["analyse", "attention", "--model", str(model_dir), *other]) == 2
    assert "translates de-en, and the test set is en-de" in capsys.readouterr().err


def test_matplotlib_is_asked_for_before_the_work(numbers, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refused("padir[plot]"):
        analyses.run("refinement", numbers[0], numbers[2], Decoding(), analyses.AnalysisOptions())
    with refused("attention, refinement"):
        analyses.run("colour", numbers[0], numbers[2], Decoding(), analyses.AnalysisOptions())


def test_an_autoregressive_model_is_refused(numbers):
    pytest.importorskip("matplotlib")
    translator = random_translator(numbers[0].tokenizer, causal=True)
    for subject in analyses.SUBJECTS:
        with refused("autoregressive"):
            analyses.run(subject, translator, numbers[2], Decoding(), analyses.AnalysisOptions())


def test_what_is_undefined_is_no_number():
    assert study._finite({"a": [float("nan"), 1.0], "b": {"c": (float("inf"), "x")}}) == {
        "a": [None, 1.0],
        "b": {"c": [None, "x"]},
    }
