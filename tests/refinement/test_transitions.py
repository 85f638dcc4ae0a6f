"""Transitions between two training stages, on canvases and decoders that a person can check."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.fakes import IDS, assert_value, clean, keys, moody, numbered, packed, widened

from padir.refinement import (
    Cmlm,
    FromStrategy,
    Glat,
    MaskPredict,
    Padir,
    PredictionRejecter,
    RewriteAll,
    SampledUnroll,
    Smart,
    StageTransition,
    from_tokens,
)
from padir.refinement.scores import Output, forbid

EOS, MASK = IDS.eos, IDS.mask
BETWEENS = [FromStrategy(), FromStrategy(MaskPredict()), Smart(), Glat(), SampledUnroll()]


def row(tokens, start=None, rows=1):
    """Rows of editable tokens and EOS."""
    tokens_BL = jnp.array([[*tokens, EOS]] * rows)
    editable_BL = jnp.array([[True] * len(tokens) + [False]] * rows)
    initial_BL = tokens_BL if start is None else jnp.array([[*start, EOS]] * rows)
    return from_tokens(tokens_BL, initial_BL, editable_BL, jnp.ones_like(tokens_BL), IDS)


def guess(tokens, rows=1):
    """A decoder's output whose argmax is `tokens`."""
    return Output(9.0 * jax.nn.one_hot(jnp.array([[*tokens, EOS]] * rows), IDS.vocab_size))


def between(transition, canvas, output, target_BL=None, chosen_BL=None, progress=0.0):
    """The next canvas and its chosen positions; the target is what stands there, and every free position is chosen."""
    target_BL = canvas.tokens_BL if target_BL is None else target_BL
    chosen_BL = canvas.editable_BL if chosen_BL is None else chosen_BL
    return transition(keys(len(target_BL)), canvas, output, target_BL, chosen_BL, progress=progress)


@pytest.fixture(params=BETWEENS, ids=str)
def transition(request):
    return request.param


@functools.partial(jax.jit, static_argnums=0)
def run_between(transition, tokens_BL, editable_BL, segment_BL):
    """The canvas and the chosen positions after a transition from corrupted tokens."""
    noisy_BL, chosen_BL = Cmlm()(keys(len(tokens_BL)), tokens_BL, editable_BL, segment_BL, ids=IDS)
    initial_BL = jnp.where(editable_BL, MASK, tokens_BL)
    canvas = from_tokens(noisy_BL, initial_BL, editable_BL, segment_BL, IDS)
    output = Output(forbid(moody()(canvas), IDS.special))
    return transition(keys(len(tokens_BL), 5), canvas, output, tokens_BL, chosen_BL, progress=jnp.float32(0.5))


class TestContract:
    def test_is_a_frozen_hashable_between(self, transition):
        assert_value(transition, StageTransition)

    def test_leaves_eos_and_padding_and_chooses_free_positions(self, transition):
        tokens_BL, editable_BL, segment_BL = clean()
        canvas, chosen_BL = run_between(transition, tokens_BL, editable_BL, segment_BL)
        assert_array_equal(canvas.tokens_BL[~editable_BL], tokens_BL[~editable_BL])
        assert chosen_BL.any() and not (chosen_BL & ~editable_BL).any()

    def test_is_the_same_without_jit_and_in_a_longer_row(self, transition):
        with jax.disable_jit():
            plain = run_between(transition, *(widened(x, 20) for x in clean()))
        jitted = run_between(transition, *clean())
        assert_array_equal(plain[0].tokens_BL[:, :12], jitted[0].tokens_BL)
        assert_array_equal(plain[1][:, :12], jitted[1])

    def test_segments_of_a_packed_row_do_not_see_each_other(self, transition):
        rows = numbered(*(clean([n] * 4, n, seed=n) for n in (4, 7)))
        together, first, second = (run_between(transition, *packed(some)) for some in (rows, rows[:1], rows[1:]))
        for take in (lambda made: made[0].tokens_BL, lambda made: made[1]):
            assert_array_equal(take(together)[:, :4], take(first)[:, :4])
            assert_array_equal(take(together)[:, 4:11], take(second)[:, :7])


class TestFromStrategy:
    """The next canvas of the strategy's first step, whatever its stopping rule says."""

    def after(self, strategy, tokens, output, start=None):
        canvas = row(tokens, start)
        chosen_BL = canvas.editable_BL & (canvas.tokens_BL == 11)
        after, chosen_BL = between(FromStrategy(strategy), canvas, output, chosen_BL=chosen_BL)
        assert chosen_BL.tolist() == [[token == 11 for token in (*tokens, EOS)]]  # what the corruption chose
        assert after.tokens_BL[0, -1] == EOS
        return after.tokens_BL[0, :-1].tolist()

    def test_stutter_is_taken_back(self):
        assert self.after(Padir(), [10, 11, 12], guess([20, 20, 22])) == [20, 11, 22]
        assert self.after(Padir("start"), [10, 11, 12], guess([20, 20, 22]), start=[7, 8, 9]) == [20, 8, 22]
        assert self.after(Padir("none"), [10, 11, 12], guess([20, 20, 22])) == [20, 20, 22]

    def test_a_fixpoint_shows_no_stutter(self):
        """Decoding would end here with 20 20 22, the argmax."""
        assert self.after(Padir(), [20, 11, 22], guess([20, 20, 22])) == [20, 11, 22]

    def test_predictions_that_are_all_rejected_are_not_shown(self):
        output = dataclasses.replace(guess([20, 21, 22]), keep_logits_BL=jnp.full((1, 4), -5.0), judges="prediction")
        for remask, tokens in [("previous", [10, 11, 12]), ("start", [7, 8, 9]), ("logits", [20, 21, 22])]:
            assert self.after(PredictionRejecter(remask=remask), [10, 11, 12], output, start=[7, 8, 9]) == tokens

    def test_the_step_is_the_first_of_two(self):
        output = Output(jnp.array([[[1.0], [0.5], [0.2], [1.0]]]) * guess([20, 21, 22]).logits_BLV)
        assert self.after(MaskPredict(), [MASK] * 3, output) == [20, 21, MASK]  # one half, rounded down
        linear = RewriteAll(1.0, schedule="linear", remask="previous")
        assert self.after(linear, [10, 11, 12], output) == [20, 11, 12]  # of three and EOS

    def test_scores_of_an_earlier_stage_count_for_nothing(self):
        canvas = row([MASK, MASK]).replace(
            score_BL=jnp.array([[-0.1, -0.1, 0.0]]), written_BL=jnp.array([[True, True, False]])
        )
        after, _ = between(FromStrategy(MaskPredict()), canvas, guess([20, 21]))
        assert after.tokens_BL.tolist() == [[MASK, 21, EOS]]


class TestSmart:
    def test_fills_only_the_masks_and_hides_a_random_number(self):
        canvas = row([MASK, 11, MASK, 13], start=[MASK] * 4, rows=2_000)
        after, masked_BL = between(Smart(), canvas, guess([20, 21, 22, 23], 2_000), chosen_BL=canvas.tokens_BL == MASK)
        # 11 and 13 were the target's and stay, whatever the decoder thinks of them.
        assert_array_equal(after.tokens_BL, jnp.where(masked_BL, MASK, jnp.array([20, 11, 22, 13, EOS])))
        numbers = np.bincount(np.asarray(masked_BL.sum(-1)), minlength=5)
        assert numbers[0] == 0 and np.square(numbers[1:] - 500).sum() / 500 < 21.1  # chi-squared, p = 1e-4
        assert_allclose(masked_BL[:, :4].mean(0), 10 / 16, atol=0.045)

    def test_the_decoding_strategy_is_mask_predict(self):
        assert Smart().strategy == MaskPredict() and dataclasses.asdict(Smart()) == {}


class TestGlat:
    @pytest.mark.parametrize("wrong, ratio", [(0, 0.5), (1, 0.5), (5, 0.5), (10, 0.3), (10, 1.0)])
    def test_reveals_the_ratio_of_the_distance_on_average(self, wrong, ratio):
        target, rows = list(range(10, 20)), 500
        target_BL, canvas = jnp.array([[*target, EOS]] * rows), row([MASK] * 10, rows=rows)
        output = guess([30] * wrong + target[wrong:], rows)
        after, chosen_BL = between(Glat(ratio, ratio), canvas, output, target_BL, progress=0.7)
        share = float((~chosen_BL & canvas.editable_BL).mean() * 11 / 10)
        expected = ratio * wrong / 10
        assert share == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / (10 * rows)))
        assert_array_equal(after.tokens_BL, jnp.where(chosen_BL, MASK, target_BL))

    def test_reveals_right_guesses_as_often_as_wrong_ones(self):
        target = [10, 11, 12, 13]
        target_BL, canvas = jnp.array([[*target, EOS]] * 2_000), row([MASK] * 4, rows=2_000)
        output = guess([10, 11, 30, 31], 2_000)
        _, chosen_BL = between(Glat(0.5, 0.5), canvas, output, target_BL)
        assert_allclose(chosen_BL[:, :4].mean(0), 0.75, atol=4 * np.sqrt(0.75 * 0.25 / 2_000))

    def test_tokens_that_the_corruption_kept_are_hidden_again(self):
        canvas = row([10, MASK, 12], start=[MASK] * 3)
        target_BL = jnp.array([[10, 11, 12, EOS]])
        after, chosen_BL = between(Glat(), canvas, guess([10, 11, 12]), target_BL)
        assert after.tokens_BL.tolist() == [[MASK, MASK, MASK, EOS]]
        assert chosen_BL.tolist() == [[True, True, True, False]]

    def test_each_segment_has_its_own_distance(self):
        rows = 500
        target_BL = jnp.array([[10, 11, EOS, 12, 13, 14, 15, EOS]] * rows)
        segment_BL = jnp.array([[1, 1, 1, 2, 2, 2, 2, 2]] * rows)
        editable_BL = target_BL != EOS
        canvas = from_tokens(
            jnp.where(editable_BL, MASK, EOS), jnp.where(editable_BL, MASK, EOS), editable_BL, segment_BL, IDS
        )
        best_BL = jnp.array([[10, 11, EOS, 30, 30, 30, 15, EOS]] * rows)
        output = Output(9.0 * jax.nn.one_hot(best_BL, IDS.vocab_size))
        _, chosen_BL = between(Glat(0.8, 0.8), canvas, output, target_BL)
        shown_L = (~chosen_BL & editable_BL).mean(0)
        assert_allclose(shown_L[:2], 0)
        assert_allclose(shown_L[3:7], 0.8 * 3 / 4, atol=5 * np.sqrt(0.24 / rows))

    def test_the_ratio_is_annealed(self):
        glat = Glat()
        assert [glat.ratio(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.5, 0.4, 0.3])
        target_BL, canvas = jnp.array([[10] * 10 + [EOS]] * 500), row([MASK] * 10, rows=500)
        run = jax.jit(lambda p: between(glat, canvas, guess([30] * 10, 500), target_BL, progress=p)[1])
        shown = [1 - float(run(p)[:, :10].mean()) for p in (0.0, 0.5, 0.999)]
        assert shown == pytest.approx([0.5, 0.4, 0.3], abs=0.04)


class TestSampledUnroll:
    def frequencies(self, temperature):
        logits_V = jnp.full(IDS.vocab_size, -jnp.inf).at[6:9].set(jnp.log(jnp.array([0.6, 0.3, 0.1])))
        canvas = row([10] * 20, rows=500)
        output = Output(jnp.broadcast_to(logits_V, (500, 21, IDS.vocab_size)))
        after, _ = between(SampledUnroll(temperature), canvas, output)
        tokens = np.asarray(after.tokens_BL)[:, :20]
        assert (after.tokens_BL[:, 20] == EOS).all() and len({tuple(each) for each in tokens}) > 450
        expected = np.log([0.6, 0.3, 0.1])[tokens - 6]  # of the model, whatever the temperature
        assert_allclose(after.score_BL[:, :20], expected, rtol=1e-5)
        return np.bincount(tokens.ravel(), minlength=9)[6:] / tokens.size

    def test_samples_every_free_position_from_the_model(self):
        assert_allclose(self.frequencies(1.0), [0.6, 0.3, 0.1], atol=0.02)

    def test_the_temperature_sharpens(self):
        # At 1/2 the probabilities are squared: 0.36, 0.09, 0.01 of 0.46.
        assert_allclose(self.frequencies(0.5), np.array([36, 9, 1]) / 46, atol=0.02)

    def test_chosen_positions_stay_what_the_corruption_chose(self):
        canvas = row([10, 11])
        chosen_BL = jnp.array([[False, True, False]])
        assert between(SampledUnroll(), canvas, guess([20, 21]), chosen_BL=chosen_BL)[1] is chosen_BL
