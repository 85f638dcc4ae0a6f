"""Samplers of one's own: their laws beside those of padir's strategies, and planted faults, each found by its name."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refuses

from padir.refinement import parse_strategy
from padir.studies.analysis.law import law
from padir.studies.analysis.samplers import Sampler, Walk, checks_of
from padir.studies.analysis.truth import ExactDecoder, Joint

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "strategies"))

from ancestral import step as ancestral

FOUR = Joint(np.array([[7, 7, 8], [8, 7, 7], [7, 8, 7], [8, 8, 8]]), np.array([0.4, 0.3, 0.2, 0.1]))
SEVERAL = Joint(np.array([[8, 7, 7], [7, 8, 8]]), np.array([0.7, 0.3]))
RIGHT = (
    "leaves no mask",
    "writes in each of up to 3 passes",
    "writes a position at most once",
    "keeps fixed positions",
)
RIGHT += ("does not depend on its batch", "repeats itself with equal numbers", "uses its random numbers")
RIGHT += ("draws each position from its probabilities",)


def draw(logits, uniform_BL, temperature=1.0):
    prob = np.exp(logits / temperature)
    return (np.cumsum(prob / prob.sum(-1, keepdims=True), axis=-1) <= uniform_BL[..., None]).sum(-1)


def remasking(tokens, logits, uniforms, mask, step, num_steps, fixed, temperature):
    """Draws every token again, and hides a falling share of them; right in each point."""
    drawn = draw(logits, uniforms[..., 0], temperature)
    hidden = uniforms[..., 1] < 1 - (step + 1) / num_steps
    return np.where(fixed, tokens, np.where(hidden, mask, drawn))


def forgets_the_prompt(tokens, logits, uniforms, mask, step, num_steps):
    return remasking(tokens, logits, uniforms, mask, step, num_steps, np.zeros(tokens.shape, bool), 1.0)


def ignores_temperature(tokens, logits, uniforms, mask, step, num_steps, temperature):
    return ancestral(tokens, logits, uniforms, mask, step, num_steps, 1.0)


def of_the_batch(tokens, logits, uniforms, mask):
    """Writes the positions at which the whole batch is most confident."""
    confidence = np.where(tokens == mask, logits.max(-1), -np.inf)
    return np.where((tokens == mask) & (confidence == confidence.max()), logits.argmax(-1), tokens)


def in_order(tokens, logits, uniforms, mask, step, num_steps, late=0):
    """Writes a share of the positions from left to right; one pass too late with `late`."""
    count = tokens.shape[1] * (step + 1 - late) // num_steps
    chosen = (tokens == mask) & (np.arange(tokens.shape[1]) < count)
    return np.where(chosen, draw(logits, uniforms[..., 0]), tokens)


def a_pass_late(tokens, logits, uniforms, mask, step, num_steps):
    return in_order(tokens, logits, uniforms, mask, step, num_steps, late=1)


def a_pass_early(tokens, logits, uniforms, mask, step, num_steps):
    return in_order(tokens, logits, uniforms, mask, step, max(1, num_steps - 1))


def of_the_batch_later(tokens, logits, uniforms, mask, step):
    return of_the_batch(tokens, logits, uniforms, mask) if step else tokens


def of_the_first_row(tokens, logits, uniforms, mask, step, num_steps):
    """In the last of four passes, all rows get the largest id of the first one."""
    after = ancestral(tokens, logits, uniforms, mask, step, num_steps, 1.0)
    if (step, num_steps) != (3, 4) or not len(tokens):
        return after
    return np.where(tokens == mask, np.where(tokens[0] < mask, tokens[0], 0).max(), tokens)


def at_the_end(tokens, logits, uniforms, mask, step, num_steps):
    """Draws the prompt, too, in the last of four passes."""
    if (step, num_steps) == (3, 4):
        return draw(logits, uniforms[..., 0])
    return ancestral(tokens, logits, uniforms, mask, step, num_steps, 1.0)


def another_temperature(tokens, logits, uniforms, mask, step, num_steps, temperature):
    return ancestral(tokens, logits, uniforms, mask, step, num_steps, 1 / temperature)


def squared_temperature(tokens, logits, uniforms, mask, step, num_steps, temperature):
    return ancestral(tokens, logits, uniforms, mask, step, num_steps, temperature**2)


def idle_when_alone(tokens, logits, uniforms, mask, step, num_steps):
    return tokens if len(tokens) == 1 else ancestral(tokens, logits, uniforms, mask, step, num_steps, 1.0)


def half_the_logits(tokens, logits, uniforms, mask, step, num_steps):
    return ancestral(tokens, logits / 2, uniforms, mask, step, num_steps, 1.0)


def one_number(tokens, logits, uniforms, mask):
    """Draws all positions by the first one's number."""
    return np.where(tokens == mask, draw(logits, uniforms[:, :1, 0]), tokens)


def of_many_bounds(tokens, logits, uniforms):
    return (uniforms[..., 0][..., None] > np.arange(1, 40) / 40).sum(-1) % 3


def by_seed(tokens, logits, seed, mask, step, num_steps):
    uniforms = np.random.default_rng(seed).random((*tokens.shape, 2))
    return ancestral(tokens, logits, uniforms, mask, step, num_steps, 1.0)


def without_seed(tokens, logits, seed, mask, step, num_steps):
    return by_seed(tokens, logits, None, mask, step, num_steps)


def answers(function):
    found = checks_of(Sampler("mine", function, 50), [FOUR, SEVERAL], 2, range(1, 6))
    return {check.question: (check.answer, check.evidence) for check in found}


def test_a_right_sampler_has_no_fault():
    assert {question: answer for question, (answer, _) in answers(ancestral).items()} == {
        **dict.fromkeys([*RIGHT, "uses its temperature"], "yes"),
        "changes what it wrote": "no",
    }
    found = answers(remasking)
    assert {question for question, (answer, _) in found.items() if answer != "yes"} == {
        "writes a position at most once"
    }
    assert found["writes a position at most once"] == ("no", "up to 5 times")


@pytest.mark.parametrize(
    ("function", "question", "answer", "evidence"),
    [
        (ancestral, "changes what it wrote", "no", "no token is hidden or written again"),
        (forgets_the_prompt, "keeps fixed positions", "no", "they change in pass 1 of 1, pass 1 of 2"),
        (at_the_end, "keeps fixed positions", "no", "they change in pass 4 of 4"),
        (at_the_end, "changes what it wrote", "yes", ""),
        (at_the_end, "writes a position at most once", "no", "up to 2 times"),
        (ignores_temperature, "uses its temperature", "no", "at 0.5 it is as sure as at 1"),
        (another_temperature, "uses its temperature", "no", "at 0.5 it is no surer than at 1"),
        (squared_temperature, "draws each position from its probabilities", "yes", ""),
        (squared_temperature, "uses its temperature", "no", "at 0.5, a sentence's probability is 0."),
        (idle_when_alone, "does not depend on its batch", "no", "change pass 1 of 1"),
        (a_pass_late, "draws each position from its probabilities", "-", "masks are left after a pass"),
        (half_the_logits, "draws each position from its probabilities", "no", "probability is 0."),
        (one_number, "draws each position from its probabilities", "no", "probability is 0."),
        (forgets_the_prompt, "uses its temperature", "-", "it has no argument of this name"),
        (of_the_batch, "does not depend on its batch", "no", "other canvases beside it change pass 1 of 1"),
        (of_the_batch, "uses its random numbers", "no", "two different ones give the same tokens"),
        (a_pass_late, "leaves no mask", "no", "masks are left after 1, 2, 3, 4, ... passes"),
        (a_pass_late, "writes in each of up to 3 passes", "no", "nothing is written in pass 1 of 1, pass 1 of 2"),
        (a_pass_early, "writes in each of up to 3 passes", "no", "nothing is written in pass 2 of 2, pass 3 of 3"),
        (of_the_first_row, "does not depend on its batch", "no", "change pass 4 of 4"),
        (of_the_batch_later, "does not depend on its batch", "no", "change pass 2 of 2"),
        (a_pass_late, "uses its random numbers", "yes", ""),
        (of_many_bounds, "leaves no mask", "-", "too many states to enumerate"),
        (of_many_bounds, "keeps fixed positions", "-", "too many states to enumerate"),
        (without_seed, "repeats itself with equal seeds", "no", "two calls differ in pass 1 of 1"),
    ],
)
def test_a_planted_fault_has_its_name(monkeypatch, function, question, answer, evidence):
    monkeypatch.setattr("padir.studies.analysis.law.MOST", 10_000)
    found = answers(function)
    assert found[question][0] == answer and evidence in found[question][1]


def test_what_does_not_repeat_itself_is_asked_nothing_else():
    assert [*answers(without_seed)] == ["repeats itself with equal seeds"]


@pytest.mark.parametrize(("share", "answer"), [(1.0, "yes"), (0.5, "no")])
def test_samples_show_a_wrong_temperature(share, answer):
    def function(tokens, logits, seed, mask, step, num_steps):
        return by_seed(tokens, logits / share, seed, mask, step, num_steps)

    found = checks_of(Sampler("mine", function, 4_000), [FOUR, SEVERAL], 2, range(1, 3))
    assert {check.question: check.answer for check in found}["draws each position from its probabilities"] == answer


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_ancestral_sampling_is_remdm_that_hides_nothing(num_steps):
    """Two programs, of NumPy and JAX, and two ways to enumerate: the laws are equal."""
    walk = Walk(Sampler("mine", ancestral), [FOUR], 2)
    mine = walk.law(num_steps)
    padirs = law(parse_strategy("remdm:sigma=0.0"), ExactDecoder.of([FOUR], 2), num_steps, masked=True)
    assert np.array_equal(mine.tokens_KL, padirs.tokens_KL)
    assert mine.prob_K == pytest.approx(padirs.prob_K, abs=1e-6)


def test_a_sampled_law_is_near_the_exact_one():
    exact, sampled = (Walk(Sampler("mine", each, 4_000), [FOUR], 2).law(2) for each in (ancestral, by_seed))
    assert np.array_equal(exact.tokens_KL, sampled.tokens_KL)
    assert sampled.prob_K == pytest.approx(exact.prob_K, abs=4 * 0.5 / np.sqrt(4_000))


def test_logits_are_those_of_the_answers_that_agree():
    walk = Walk(Sampler("mine", ancestral), [FOUR], 2)
    logits_BLV = walk.logits(np.zeros(3, int), np.array([[2, 2, 2], [0, 2, 2], [0, 0, 0]]))
    assert np.exp(logits_BLV[0]) == pytest.approx(np.array([[0.6, 0.4, 0], [0.7, 0.3, 0], [0.5, 0.5, 0]]))
    assert np.exp(logits_BLV[1, 1]) == pytest.approx([0.4 / 0.6, 0.2 / 0.6, 0])
    # No answer is 0 0 0: three of them agree with it in two tokens.
    assert np.exp(logits_BLV[2, 0]) == pytest.approx([0.6 / 0.9, 0.3 / 0.9, 0])


def test_arguments_of_its_own_have_defaults():
    found = Walk(Sampler("mine", functools.partial(in_order, late=0)), [FOUR], 2).law(3)
    assert found.prob_K == pytest.approx(Walk(Sampler("mine", in_order), [FOUR], 2).law(3).prob_K)


def short(tokens, logits, uniforms):
    return tokens[:, :1]


def outside(tokens, logits, uniforms, mask):
    return tokens + 1


def of_numbers(tokens, logits, uniforms):
    return np.log(uniforms[..., 0]).argmax(-1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda tokens, logits: tokens, "the arguments of mine must be (tokens, logits, uniforms) or"),
        (lambda tokens, logits, uniforms, length: tokens, "got '(tokens, logits, uniforms, length)'"),
        (short, "what mine gives must be whole numbers in an array of shape (1, 3), got 'int64 (1, 1)'"),
        (outside, "the ids that mine gives must be from 0 to 2, the mask, got"),
        (
            lambda tokens, logits, uniforms: logits[..., 0],
            "whole numbers in an array of shape (1, 3), got 'float64 (1, 3)'",
        ),
        (lambda tokens, logits, uniforms: {}["a"], "mine failed for 1 rows (KeyError: 'a') in line"),
        (of_numbers, "cannot be enumerated: uniforms are given to np.log in a way that ... or draw by `seed`"),
    ],
)
def test_wrong_functions_are_refused(function, words):
    refuses(lambda: Walk(Sampler("mine", function), [FOUR], 2).law(1), words)
