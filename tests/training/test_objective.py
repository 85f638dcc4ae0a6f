import dataclasses
import functools
import math

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.closeness import assert_close
from support.fakes import IDS, keys
from support.objectives import check_packing, gradient, run
from support.published_rules import factors
from support.refusals import refused
from support.tiny import decoded, one_layer_model, pairs, rows_of

from padir.models import LengthOutput, ModelConfig, Transformer
from padir.refinement import (
    Constant,
    Mask,
    MaskPredict,
    Mixed,
    Padir,
    RandomVisible,
    Uniform,
    from_tokens,
    remask,
)
from padir.refinement.scores import Output, forbid
from padir.refinement.transitions import FromStrategy
from padir.training.batch import (
    STAGE_WEIGHTS,
    cross_entropy,
    length_loss,
    mean_loss,
    rejecter_loss,
    stage_weight,
)
from padir.training.metrics import step_metrics
from padir.training.objective import Objective

PAIRS = pairs([(4, 5), (6, 3), (3, 7)])
APART = rows_of([[pair] for pair in PAIRS], 8, 8)
PACKED = rows_of([PAIRS], 24, 20)


def loss_of(objective, batch=APART, dropout=False, **sizes):
    """(loss, sums) of the pairs, for a model with one layer."""
    return run(*one_layer_model(**sizes), batch, objective, dropout=dropout)


@dataclasses.dataclass(frozen=True)
class Given(Uniform):
    """Noise that was drawn before packing: row r, segment g gets what pair r + g - 1 was given."""

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
        noisy_BL, _ = Uniform(0.6)(keys(3), APART.target_BL, _free(APART), APART.target_segment_BL, ids=ids)
        if tokens_BL.shape == noisy_BL.shape:
            out_BL = noisy_BL
        else:
            flat = [noisy_BL[b, : len(target)] for b, (_, target) in enumerate(PAIRS)]
            out_BL = jnp.pad(jnp.concatenate(flat), (0, tokens_BL.shape[1] - sum(map(len, flat))))[None]
        return out_BL, out_BL != tokens_BL

    def full(self):
        return self


def unchanged(key_B, canvas, output, target_BL, chosen_BL, *, progress):
    """The same canvas again, for the next stage."""
    return canvas, chosen_BL


@functools.partial(jax.jit, static_argnums=0)
def output_of(model, params, tokens_BL):
    """The decoder's output for canvases of the targets of `APART`."""
    bound = model.bind({"params": params})
    encoded = bound.encode(APART.source_BS, APART.source_segment_BS)
    cross_kv = bound.cross_kv(encoded.memory_BSD)
    return decoded(bound, tokens_BL, APART.target_segment_BL, cross_kv, encoded.segment_BS)


def _free(batch):
    return (batch.target_segment_BL > 0) & (batch.target_BL != IDS.eos)


class TestCrossEntropy:
    def test_uniform_logits_cost_log_v(self):
        loss, z = cross_entropy(jnp.zeros((2, 3, 50)), jnp.zeros((2, 3), int), jnp.ones((2, 3), bool))
        assert_allclose(loss, 6 * np.log(50), rtol=1e-6)
        assert z == 0

    def test_the_smoothed_target_itself_costs_nothing(self):
        target_V = jnp.full(10, 0.1 / 9).at[4].set(0.9)
        loss, _ = cross_entropy(jnp.log(target_V)[None], jnp.array([4]), jnp.ones(1), label_smoothing=0.1)
        assert_allclose(loss, 0, atol=1e-5)

    def test_z_loss_is_the_squared_log_partition(self):
        loss, z = cross_entropy(jnp.zeros((1, 50)), jnp.array([3]), jnp.array([2.0]), z_loss=0.1)
        assert_allclose(z, 2 * 0.1 * np.log(50) ** 2, rtol=1e-6)
        assert_allclose(loss, 2 * np.log(50) + z, rtol=1e-6)


class TestStages:
    @pytest.mark.parametrize("strategy", [Padir(), pytest.param(MaskPredict(), marks=pytest.mark.slow)], ids=str)
    def test_packed_and_unpacked_losses_and_gradients_agree(self, strategy):
        objective = Objective(Given(), FromStrategy(strategy), ("noised", "all"), label_smoothing=0.1, z_loss=1e-3)
        sums = check_packing(*one_layer_model(), objective, APART, PACKED)
        assert sums.tokens == 18 and sums.segments == 3

    def test_more_padding_and_an_empty_row_change_nothing(self):
        wide = rows_of([*([pair] for pair in PAIRS), []], 16, 24)
        objective = Objective(Mask(rate=1.0))
        (one, sums), (two, padded) = (loss_of(objective, batch=batch) for batch in (APART, wide))
        assert_allclose(one, two, rtol=1e-5)
        assert (sums.segments, sums.tokens) == (padded.segments, padded.tokens)

    def test_the_encoder_runs_once_for_all_stages(self, monkeypatch):
        model, params = one_layer_model()
        calls = {"encode": 0, "cross_kv": 0, "draft_states": 0}
        for name in calls:
            method = getattr(Transformer, name)

            def counted(self, *args, _method=method, _name=name, **kwargs):
                calls[_name] += 1
                return _method(self, *args, **kwargs)

            monkeypatch.setattr(Transformer, name, counted)
        jax.eval_shape(lambda: run(model, params, APART, Objective(stage_weights=("all",) * 3))[0])
        assert calls == {"encode": 1, "cross_kv": 1, "draft_states": 3}

    def test_no_gradient_passes_through_the_choice_between_stages(self):
        model, params = one_layer_model()
        second_only = Objective(Given(), FromStrategy(Padir()), ("none", "all"), length_weight=0.0)
        _, grads = gradient(model, params, APART, second_only)

        @jax.jit
        def filled_by(params):
            noisy_BL, _ = Given()(keys(3), APART.target_BL, _free(APART), APART.target_segment_BL, ids=IDS)
            canvas = from_tokens(noisy_BL, noisy_BL, _free(APART), APART.target_segment_BL, IDS)
            output = Output(forbid(output_of(model, params, noisy_BL).logits_BLV, IDS.special))
            return FromStrategy(Padir())(keys(3), canvas, output, APART.target_BL, _free(APART), progress=0.0)[0]

        filled = filled_by(params)

        @dataclasses.dataclass(frozen=True)
        class Filled(Uniform):
            def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
                return filled.tokens_BL, editable_BL

        one_stage = Objective(Filled(), stage_weights=("all",), length_weight=0.0)
        _, expected = gradient(model, params, APART, one_stage)
        flat = flax.traverse_util.flatten_dict(expected, sep="/")
        for name, grad in flax.traverse_util.flatten_dict(grads, sep="/").items():
            assert_close({name: grad}, {name: flat[name]})

    def test_weights_of_a_stage(self):
        present, free = jnp.array([[True, True, True, False]]), jnp.array([[True, True, False, False]])
        chosen = jnp.array([[False, True, False, False]])
        sentinel = jnp.array([[True, False, False, False]])
        segment = present.astype(int)
        weights = {
            name: stage_weight(name, present, free, chosen, sentinel, segment).tolist() for name in STAGE_WEIGHTS
        }
        assert weights == {
            "all": [[True, True, True, False]],
            "noised": [[False, True, True, False]],
            "masked": [[False, False, True, False]],
            "inverse": [[0.0, 2.0, 1.0, 0.0]],
            "falling": [[0.0, pytest.approx(1 / 3), 1.0, 0.0]],
            "none": [[False, False, False, False]],
        }
        masked = stage_weight("masked", present, free, chosen, chosen, segment)
        assert masked.tolist() == [[False, True, True, False]]

    def test_weights_by_the_number_of_chosen_positions_of_each_segment(self):
        """Segments of 3 and 2 editable positions, of which 2 and 1 are chosen."""
        segment = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0]])
        free = jnp.array([[True, True, True, False, True, True, False, False]])
        chosen = jnp.array([[True, False, True, False, False, True, False, False]])
        weights = [stage_weight(name, segment > 0, free, chosen, chosen, segment) for name in ("inverse", "falling")]
        assert_allclose(weights[0], [[1.5, 0, 1.5, 1, 0, 2, 1, 0]])
        assert_allclose(weights[1], [[0.3, 0, 0.3, 1, 0, 1 / 3, 1, 0]], rtol=1e-6)

    @pytest.mark.parametrize("name, weight", [("inverse", lambda t: 1 / t), ("falling", lambda t: 1 - t)])
    def test_published_weights_of_a_rate_with_the_rate_integrated_out(self, name, weight):
        """Of MDLM and RDM: the mean over t ~ U(0, 1) of weight(t) times n chosen of 5 positions, by quadrature."""
        t = (np.arange(100_000) + 0.5) / 100_000
        free = jnp.array([[True] * 5 + [False]])
        for n in range(1, 6):
            chosen = jnp.array([[i < n for i in range(6)]])
            ours = stage_weight(name, jnp.ones((1, 6), bool), free, chosen, chosen, jnp.ones((1, 6), int))[0, 0]
            published = (math.comb(5, n) * t**n * (1 - t) ** (5 - n) * weight(t)).mean()
            assert_allclose(ours / 5, published, rtol=1e-5)  # `Cmlm` draws each n with probability 1/5

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"stage_weights": ()}, "at least one stage"),
            ({"stage_weights": ("all", "some")}, "got 'some'"),
            ({"stage_weights": ("all", "none")}, "last stage 'none' trains nothing"),
            ({"stage_weights": ("masked", "all")}, "no masks, only EOS use 'noised'"),
            *(({"normaliser": number}, f"Objective.normaliser {number}") for number in (0.5, math.nan, math.inf)),
            *(
                (
                    {"transition": FromStrategy(each), "stage_weights": ("all",) * 3},
                    "2 stages remask='logits' 'previous'",
                )
                for each in (Padir("logits"), Constant(remask="logits"))
            ),
        ],
    )
    def test_wrong_settings(self, wrong, words):
        with refused(words):
            Objective(**wrong)

    def test_settings_near_the_wrong_ones(self):
        assert Objective(Mixed(), stage_weights=("masked", "all"))  # some of its noise is a mask
        for strategy in (Padir("logits"), Constant(remask="logits")):
            assert Objective(transition=FromStrategy(strategy)).decoded_with(ModelConfig()) == strategy

    def test_positions_that_began_masked_count_in_the_next_stage(self):
        _, sums = loss_of(Objective(Mask(1.0), stage_weights=("masked", "masked")))
        assert sums.stage_weight_S.tolist() == [(APART.target_BL > 0).sum()] * 2

    def test_each_stages_positions_are_counted(self):
        _, sums = loss_of(Objective(Mask(0.0), stage_weights=("masked", "all")))
        assert sums.stage_weight_S.tolist() == [(APART.target_BL == IDS.eos).sum(), (APART.target_BL > 0).sum()]


class TestNormaliser:
    @pytest.mark.parametrize("normaliser", ["weights", "positions", "sentences", 7.0])
    def test_the_published_factors_of_the_tokens_losses(self, normaliser):
        """Every third token is masked, and both stages see the same canvas."""
        third_BL = _free(APART) & (jnp.arange(8) % 3 == 0)

        @dataclasses.dataclass(frozen=True)
        class Third(Mask):
            def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
                return jnp.where(third_BL, ids.mask, tokens_BL), third_BL

        model, params = one_layer_model()
        objective = Objective(Third(), unchanged, ("noised", "all"), normaliser=normaliser, length_weight=0.0)
        mean = mean_loss(*run(model, params, APART, objective))
        logits_BLV = output_of(model, params, jnp.where(third_BL, IDS.mask, APART.target_BL)).logits_BLV
        loss_BL = -jnp.take_along_axis(jax.nn.log_softmax(logits_BLV), APART.target_BL[..., None], -1)[..., 0]
        weight_BL = np.float32(third_BL | (APART.target_BL == IDS.eos))
        first_BL, later_BL = factors(normaliser, weight_BL, np.asarray(APART.target_BL))
        assert_allclose(mean, (loss_BL * (first_BL + later_BL)).sum(), rtol=1e-5)


class TestChosen:
    """Weights follow what a between says that it chose."""

    NONE, ODD, EVEN, EVERY = range(4)

    def second(self, weights):
        """The second stage's loss, as a function of which editable positions were chosen: one program for all."""
        odd_L = jnp.arange(8) % 2 == 1

        def transition(key_B, canvas, output, target_BL, chosen_BL, *, progress):
            return canvas, canvas.editable_BL & jnp.stack([odd_L & False, odd_L, ~odd_L, odd_L | True])[
                progress.astype(int)
            ]

        model, params = one_layer_model()
        objective = Objective(Mask(rate=1.0), transition, ("none", weights), length_weight=0.0)

        @jax.jit
        def loss_of(which):
            return objective(jax.random.key(0), params, APART, model=model, dropout=False, progress=which)

        def second(which):
            loss, sums = loss_of(jnp.float32(which))
            assert sums.stage_loss_S[0] == 0 and loss == sums.stage_loss_S[1]
            return float(loss)

        return second

    @pytest.mark.parametrize("weights", ["noised", "masked"])
    def test_positions_count_where_they_were_chosen(self, weights):
        second = self.second(weights)
        none = second(self.NONE)  # EOS alone
        odd, even, every = second(self.ODD), second(self.EVEN), second(self.EVERY)
        assert 0 < none < min(odd, even)
        assert_allclose(odd + even - none, every, rtol=1e-5)
        assert_allclose(every, self.second("all")(self.EVERY), rtol=1e-6)

    def test_hiding_between_the_stages_hides_what_the_corruption_had_kept(self):
        def hide_all(key_B, canvas, output, target_BL, chosen_BL, *, progress):
            return remask(canvas, canvas.editable_BL), canvas.editable_BL

        for corruption in (Mask, Uniform):
            second = Objective(corruption(0.2), hide_all, ("none", "all"))
            hidden, _ = loss_of(second)
            draft, _ = loss_of(Objective(corruption(1.0), stage_weights=("all",)))
            assert_allclose(hidden, draft, rtol=1e-6)


class TestRejecter:
    def test_is_the_cross_entropy_of_keeping_what_is_right(self):
        keep_BL = jnp.log(jnp.array([[3.0, 3.0, 1 / 3, 1 / 3, 9.0]]))  # kept with 3/4, 3/4, 1/4, 1/4
        right_BL = jnp.array([[True, False, True, False, True]])
        editable_BL = jnp.array([[True, True, True, True, False]])
        loss, correct, judged = rejecter_loss(keep_BL, right_BL, editable_BL)
        assert_allclose(loss, -2 * np.log(3 / 4) - 2 * np.log(1 / 4), rtol=1e-6)
        assert (correct, judged) == (2, 4)

    def test_smoothed_labels_cost_nothing_at_the_smoothed_prediction(self):
        """T5X's cross-entropy of two classes, in NumPy."""
        keep_BL, right_BL = np.array([[2.0, -1.0, 0.3]]), np.array([[True, True, False]])
        log_prob_BL2 = -np.logaddexp(0, np.stack([keep_BL, -keep_BL], -1))  # rejected, kept
        label_BL2 = np.where(right_BL[..., None], [0.1, 0.9], [0.9, 0.1])
        expected = -(label_BL2 * log_prob_BL2).sum() + 3 * (0.9 * np.log(0.9) + 0.1 * np.log(0.1))
        loss, _, _ = rejecter_loss(jnp.asarray(keep_BL), jnp.asarray(right_BL), jnp.ones((1, 3), bool), 0.1)
        assert_allclose(loss, expected, rtol=1e-5)
        perfect = jnp.full((1, 3), np.log(9.0))
        assert_allclose(rejecter_loss(perfect, jnp.ones((1, 3), bool), jnp.ones((1, 3), bool), 0.1)[0], 0, atol=1e-6)

    @pytest.mark.parametrize("rate, sign", [(0.0, -1.0), (1.0, 1.0)])
    def test_judges_the_tokens_that_the_decoder_was_shown(self, rate, sign):
        model, params = one_layer_model(rejecter=True)  # at rate 0 all are right, at rate 1 none is
        objective = Objective(Mask(rate), stage_weights=("all",), rejecter_weight=0.5)
        loss, sums = run(model, params, APART, objective)
        editable_BL = _free(APART)
        shown_BL = jnp.where(editable_BL & (rate == 1.0), IDS.mask, APART.target_BL)
        keep_BL = output_of(model, params, shown_BL).keep_logits_BL
        expected = jnp.log1p(jnp.exp(sign * keep_BL))[editable_BL].sum()
        assert_allclose(sums.rejecter.loss, expected, rtol=1e-5)
        assert "rejecter_loss" in step_metrics(sums, seconds=1.0)
        assert sums.rejecter.correct == ((keep_BL > 0) == (sign < 0))[editable_BL].sum()
        parts = sums.stage_loss_S.sum() + sums.length_loss + 0.5 * sums.rejecter.loss
        assert_allclose(loss, parts, rtol=1e-5)

    @pytest.mark.parametrize("weights", [("all", "all"), ("none", "noised")])
    def test_the_published_head_judges_the_predictions_of_every_stage(self, weights):
        model, params = one_layer_model(rejecter=True, rejecter_judges="prediction")
        objective = Objective(Mask(0.5), unchanged, weights, rejecter_weight=0.5)
        loss, sums = run(model, params, APART, objective)
        canvas, chosen_BL = objective.first_canvas(
            jax.random.split(jax.random.split(jax.random.key(0), 3)[0], 3), APART, model
        )
        output = output_of(model, params, canvas.tokens_BL)
        right_BL = output.logits_BLV.argmax(-1) == APART.target_BL
        per_BL = jnp.where(right_BL, jnp.logaddexp(0, -output.keep_logits_BL), jnp.logaddexp(0, output.keep_logits_BL))
        counts_BL = APART.target_BL > 0  # all target tokens, whatever the weight of the stage
        stages = sum(weight != "none" for weight in weights)
        assert_allclose(sums.rejecter.loss, stages * per_BL[counts_BL].sum(), rtol=1e-5)
        assert sums.rejecter.decisions == stages * counts_BL.sum()
        assert sums.rejecter.correct == stages * ((output.keep_logits_BL > 0) == right_BL)[counts_BL].sum()
        assert_allclose(loss, sums.stage_loss_S.sum() + sums.length_loss + 0.5 * sums.rejecter.loss, rtol=1e-5)

    @pytest.mark.parametrize(("judges", "alone"), [("prediction", True), ("token", False)])
    def test_the_published_head_trains_nothing_but_itself(self, judges, alone):
        model, params = one_layer_model(rejecter=True, rejecter_judges=judges)
        objective = Objective(Mask(0.5), stage_weights=("all",))
        grads = jax.grad(lambda params: run(model, params, APART, objective)[1].rejecter.loss)(params)
        moved = {name for name, part in grads.items() if any(leaf.any() for leaf in jax.tree.leaves(part))}
        assert "rejecter" in moved and (moved == {"rejecter"}) == alone

    def test_other_models_have_none(self):
        model, params = one_layer_model()

        def loss():
            loss, sums = run(model, params, APART, Objective(stage_weights=("all",)))
            assert sums.rejecter is None
            return loss

        jax.eval_shape(loss)


class TestVisibility:
    def test_a_decontextualised_decoder_does_not_see_what_was_chosen(self):

        @dataclasses.dataclass(frozen=True)
        class Other(Mask):
            def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
                noisy_BL, chosen_BL = Mask(0.5)(key_B, tokens_BL, editable_BL, segment_BL, ids=ids)
                return jnp.where(chosen_BL, 11, noisy_BL), chosen_BL

        one, two, all_masked = (
            loss_of(Objective(corruption, stage_weights=("all",)), decontextualised=True)[0]
            for corruption in (Mask(0.5), Other(), Mask(1.0))
        )
        assert one == two and one != all_masked

    def test_random_sets_narrow_what_is_seen(self):
        plain, narrow = (
            loss_of(Objective(Mask(0.0), stage_weights=("all",), visibility=v), decontextualised=True)[0]
            for v in (None, RandomVisible())
        )
        assert jnp.isfinite(narrow) and plain != narrow

    def test_an_ordinary_decoder_refuses_it(self):
        with refused("set ModelConfig.decontextualised"):
            loss_of(Objective(visibility=RandomVisible()))


class TestLengthLoss:
    @pytest.mark.parametrize("output", [LengthOutput(), LengthOutput(canvas_BG=jnp.array([[6]]))])
    def test_nothing_is_predicted(self, output):
        assert length_loss(output, jnp.array([[4]])) == 0
