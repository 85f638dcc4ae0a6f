import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.fakes import IDS, canvas, judging, keys, moody, oracle, output, stepped
from support.refusals import refused

from padir.refinement import (
    Constant,
    MaskPredict,
    Padir,
    PredictionRejecter,
    Rejecter,
    RewriteAll,
    Uniform,
    draft,
    from_tokens,
    refine,
)
from padir.refinement.scores import Output, forbid, token_scores

EOS = IDS.eos


class TestPadir:
    @pytest.mark.parametrize(
        ("strategy", "before", "best", "step", "expected"),
        [
            (Padir(), [10, 11, 12], [20, 20, 20], 0, [20, 11, 12]),
            (Padir("start"), [10, 11, 12], [20, 20, 22], 0, [20, 8, 22]),
            (Padir("none"), [10, 11, 12], [20, 20, 20], 0, [20, 20, 20]),
            # The published test wraps around; the token before position 0 is none.
            (Padir(), [10, 11, 12], [20, 21, 20], 0, [20, 21, 20]),
            (Padir(), [10, 11, 12], [20, 20, 22], 3, [20, 20, 22]),  # the last step rewrites nothing
            (Padir(remask_last=True), [10, 11, 12], [20, 20, 22], 3, [20, 20, 22]),  # nor a single one, to the draft's
            (Padir(), [20, 11, 22], [20, 20, 22], 0, [20, 20, 22]),  # nothing changes: the argmax stands, as at the end
        ],
    )
    def test_stutter_goes_back(self, strategy, before, best, step, expected):
        after, memory = stepped(strategy, canvas(before, start=[7, 8, 9]), output(best), step=step)
        assert after.tokens_BL.tolist() == [[*expected, EOS]] and memory[0].summed_BLV is None
        assert after.done_B.tolist() == [before[0] == best[0]]

    @pytest.mark.parametrize(("confidence", "kept"), [(9.0, 20), (5.0, 30)])
    @pytest.mark.parametrize("end_cycles", [True, False])
    def test_a_row_that_oscillates_ends_with_the_better_canvas(self, confidence, kept, end_cycles):
        """20 gives 30 and 30 gives 20: with margin 7 for 30, and with another for 20."""

        def decoder(canvas):
            tokens_BL = canvas.tokens_BL
            first = jnp.where(tokens_BL[:, :1] == 20, 30, 20) == jnp.arange(IDS.vocab_size)
            other = jax.nn.one_hot(jnp.array([[11, 12, EOS]]), IDS.vocab_size) * 9.0
            margin = jnp.where(tokens_BL[:, :1] == 20, 7.0, confidence)
            return jnp.concatenate([(first * margin)[:, None], other], axis=1)

        refined = refine(keys(1), canvas([7, 8, 9]), decoder, Padir(end_cycles=end_cycles), num_steps=10)
        if end_cycles:  # 20, 30, 20 again
            assert refined.passes_B.tolist() == [3] and refined.tokens_BL.tolist() == [[kept, 11, 12, EOS]]
        else:
            assert refined.passes_B.tolist() == [10] and refined.tokens_BL.tolist() == [[30, 11, 12, EOS]]
        assert refined.cycled_B.tolist() == [end_cycles]

    @pytest.mark.parametrize("begin", [20, 30])
    def test_a_row_that_oscillates_ends_without_start_tokens(self, begin):
        """20 20 is remasked to 20 7, which gives 30 31, which gives 20 20; 7 7 gives the first of them."""

        def decoder(canvas):
            first_B1 = canvas.tokens_BL[:, :1]
            to_30_B1 = (first_B1 == 20) | ((first_B1 == 7) & (begin == 30))
            best_BL = jnp.where(to_30_B1, jnp.array([[30, 31, EOS]]), jnp.array([[20, 20, EOS]]))
            return 9.0 * jax.nn.one_hot(best_BL, IDS.vocab_size)

        refined = refine(keys(1), canvas([7, 7]), decoder, Padir(remask="start"), num_steps=10)
        assert refined.cycled_B.all() and refined.canvas.written_BL[:, :2].all()
        assert 7 not in refined.tokens_BL[0].tolist()

    @pytest.mark.parametrize("options", [{"remask": "logits"}, {"temperature": 1e-6}])
    def test_no_cycle_where_equal_tokens_may_have_other_successors(self, options):

        def decoder(canvas):
            best_BL = jnp.array([[0, EOS]]).at[:, 0].set(jnp.where(canvas.tokens_BL[:, 0] == 20, 21, 20))
            return 9.0 * jax.nn.one_hot(best_BL, IDS.vocab_size)

        refined = refine(keys(1), canvas([7]), decoder, Padir(**options), num_steps=8)
        assert not refined.cycled_B.any()

    @pytest.mark.parametrize(
        ("remask", "last", "token"),
        [("logits", False, 21), ("previous", True, 21), ("logits", True, 21), ("none", True, 20)],
    )
    def test_stutter_of_a_later_step_goes_back_to_what_the_first_wrote(self, remask, last, token):
        """Also of the last one, if asked for; of summed logits 9 for 21 beats 5 for 20."""
        strategy = Padir(remask, remask_last=last and remask != "none")
        first, memory = stepped(strategy, canvas([10, 11, 12]), output([20, 21, 22]))
        weak = output([20, 20, 23], [9.0, 5.0, 9.0])
        second, _ = stepped(strategy, first, weak, memory, step=3 if last else 1)
        assert second.tokens_BL.tolist() == [[20, token, 23, EOS]]

    def test_samples_follow_temperature_top_k_and_top_p(self):
        start = draft(keys(4_000), jnp.full(4_000, 2), 2, Uniform(), IDS)
        logits_V = (
            jnp.full(IDS.vocab_size, -jnp.inf).at[jnp.array([20, 21, 22])].set(jnp.log(jnp.array([6.0, 3.0, 1.0])))
        )
        step = jax.jit(refine, static_argnames=("decoder", "strategy", "num_steps"))

        def shares(**options):
            refined = step(
                keys(4_000),
                start,
                lambda canvas: jnp.broadcast_to(logits_V, (*canvas.tokens_BL.shape, 64)),
                Padir(**options),
                num_steps=1,
            )
            drawn_B = np.asarray(refined.tokens_BL[:, 0])
            scores = {int(t): float(s) for t, s in zip(drawn_B, refined.canvas.score_BL[:, 0], strict=True)}
            for token, score in scores.items():  # of the model's own distribution
                assert score == pytest.approx(np.log([0.6, 0.3, 0.1])[token - 20], abs=1e-4)
            return np.bincount(drawn_B, minlength=23)[20:] / 4_000

        tolerance = 4 * 0.5 / np.sqrt(4_000)
        assert_allclose(shares(temperature=1.0), [0.6, 0.3, 0.1], atol=tolerance)
        assert_allclose(shares(temperature=0.5), np.array([36, 9, 1]) / 46, atol=tolerance)
        assert_allclose(shares(temperature=1.0, top_k=2), [2 / 3, 1 / 3, 0], atol=tolerance)
        assert_allclose(shares(temperature=1.0, top_p=0.5), [1, 0, 0], atol=0)
        assert_allclose(shares(top_k=2), [1, 0, 0], atol=0)

    def test_sampling_takes_all_steps(self):
        start = draft(keys(1), jnp.array([6]), 6, Uniform(), IDS)
        answer_BL = jnp.where(start.editable_BL, 20 + jnp.arange(6), start.tokens_BL)
        passes = [
            refine(keys(1), start, oracle(answer_BL), Padir(temperature=t), num_steps=5).passes_B.tolist()
            for t in (0.0, 0.1)
        ]
        assert passes == [[2], [5]]

    def test_a_start_token_is_not_taken_back_at_the_end(self):
        with refused("previous, logits, got 'start': unset remask_last"):
            Padir(remask="start", remask_last=True)

    def test_a_segment_does_not_stutter_with_the_one_before_it(self):
        segment_BL = jnp.array([[1, 1, 2, 2, 2]])
        tokens_BL, editable_BL = jnp.array([[10, EOS, 11, 12, EOS]]), jnp.array([[True, False, True, True, False]])
        before = from_tokens(tokens_BL, tokens_BL, editable_BL, segment_BL, IDS)
        # The second segment changes at its last editable position, or it would be done and keep any argmax.
        logits = Output(9.0 * jnp.eye(IDS.vocab_size)[jnp.array([[20, EOS, EOS, 22, EOS]])])
        after, _ = stepped(Padir(), before, logits)
        assert after.tokens_BL.tolist() == [[20, EOS, EOS, 22, EOS]]


def test_scores_of_a_finished_row_are_log_probabilities_given_its_tokens():
    """So the model's own score says how far it agrees with its own draft."""
    start = draft(keys(4), jnp.array([2, 5, 9, 12]), 12, Uniform(), IDS)
    decoder = moody()
    refined = refine(keys(4), start, decoder, Padir(remask="none"), num_steps=30)
    finished_B = np.asarray(refined.canvas.done_B & ~refined.cycled_B)
    assert finished_B.any()
    expected_BL = token_scores(forbid(decoder(refined.canvas), IDS.special), refined.tokens_BL)
    where_BL = np.asarray(start.editable_BL) & finished_B[:, None]
    assert_allclose(refined.canvas.score_BL[where_BL], expected_BL[where_BL], rtol=1e-5)


class TestMaskPredict:
    def test_ties_hide_the_leftmost(self):
        after, _ = stepped(MaskPredict(), canvas([63] * 5), output([20, 21, 22, 23, 24]), num_steps=2)
        assert after.tokens_BL.tolist() == [[63, 63, 22, 23, 24, EOS]]

    def test_a_random_canvas_hides_with_its_own_random_tokens(self):
        start = draft(keys(1), jnp.array([5]), 5, Uniform(), IDS)
        answer_BL = jnp.array([[20, 21, 22, 23, EOS]])
        refined = refine(keys(1), start, oracle(answer_BL), MaskPredict(), num_steps=2, traced_steps=2)
        assert refined.tokens_TBL[1, 0].tolist() == [*start.tokens_BL[0, :2].tolist(), 22, 23, EOS]


def all_steps(start, decoder, share, remask, num_steps):
    """The constant schedule row by row, without a stop."""
    tokens, free = np.array(start.tokens_BL), np.array(start.editable_BL)
    hidden, scores = free.copy(), np.zeros(tokens.shape)
    for step in range(num_steps):
        before = tokens.copy()
        logits = np.array(decoder(start.replace(tokens_BL=jnp.asarray(tokens))))
        logits[..., list(IDS.special)] = -np.inf
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        tokens, scores = np.where(hidden, logits.argmax(-1), tokens), np.where(hidden, log_probs.max(-1), scores)
        if step < num_steps - 1:
            hidden[:] = False
            for b in range(len(tokens)):
                positions = np.flatnonzero(free[b])
                order = positions[np.argsort(scores[b, positions], kind="stable")]
                hidden[b, order[: int(np.ceil(share * len(positions)))]] = True
            tokens = np.where(hidden, np.array(start.initial_BL) if remask == "start" else before, tokens)
    return tokens


class TestConstant:
    def steps(self, strategy, *outputs, start=(63, 63, 63)):
        state, memory = canvas(start), None
        for step, out in enumerate(outputs):
            state, memory = stepped(strategy, state, out, memory, step=step)
        return state

    @pytest.mark.parametrize(("remask", "token"), [("start", 9), ("previous", 20), ("logits", 30)])
    def test_remask_chooses_the_token_of_a_taken_back_position(self, remask, token):
        strategy = Constant(count=1, remask=remask)
        one, two = output([20, 21, 22], [6.0, 3.0, 9.0]), output([30, 31, 32], [8.0, 9.0, 1.0])
        after = self.steps(strategy, one, two, start=(9, 9, 9))
        # After pass two the worst is position 0, where 20 stood (6), and the logits sum up to 6 for 20, 8 for 30.
        assert after.tokens_BL.tolist() == [[token, 31, 22, EOS]]

    def test_halts_when_nothing_is_taken_back(self):
        start = draft(keys(1), jnp.array([6]), 6, Uniform(), IDS)
        answer_BL = jnp.where(start.editable_BL, 20, start.tokens_BL)
        refined = refine(keys(1), start, oracle(answer_BL), Constant(share=0.0), num_steps=5)
        assert refined.passes_B.tolist() == [1]
        assert_array_equal(refined.tokens_BL, answer_BL)

    @pytest.mark.parametrize(
        ("strategy", "tokens"),
        [
            (RewriteAll(count=0), [20, 20, 22, 23]),
            (Constant(count=0, stutter=True), [20, 63, 22, 23]),
            (Constant(count=2, stutter=True), [63, 63, 63, 23]),  # the second repeats what is remasked
            (Constant(0.5), [63, 20, 63, 23]),
            (Constant(0.6), [63, 63, 63, 23]),  # 2.4 of the four
        ],
    )
    def test_taken_back_positions(self, strategy, tokens):
        doubtful = output([20, 20, 22, 23], [4.0, 5.0, 3.0, 9.0])
        assert self.steps(strategy, doubtful, start=[63] * 4).tokens_BL.tolist() == [[*tokens, EOS]]

    @pytest.mark.parametrize("remask", ["previous", "start"])
    def test_halting_gives_what_all_steps_would_have_given(self, remask):
        start, decoder = draft(keys(24), jnp.array([3, 4, 5, 6, 7, 9] * 4), 9, Uniform(), IDS), moody()
        refined = refine(keys(24), start, decoder, Constant(0.3, remask=remask), num_steps=12)
        assert_array_equal(refined.tokens_BL, all_steps(start, decoder, 0.3, remask, 12))
        assert (refined.passes_B < 12).any()


class TestRejecter:
    @pytest.mark.parametrize(
        ("strategy", "before", "keep", "step", "expected", "done"),
        [
            (Rejecter(), [10, 11, 12], [5.0, 5.0, -5.0], 0, [20, 21, 22], False),  # the first step writes everything
            # Later ones write what is rejected; the probabilities to keep are 0.62, 0.50, 0.38.
            (Rejecter(), [10, 11, 12], [0.5, 0.0, -0.5], 1, [10, 11, 22], False),
            (Rejecter(0.55), [10, 11, 12], [0.5, 0.0, -0.5], 1, [10, 21, 22], False),
            (Rejecter(), [10, 11, 22], [5.0, 5.0, -5.0], 1, [10, 11, 22], True),  # the rejected one is the argmax
            # Rejected predictions are masked again; the last step keeps all.
            (PredictionRejecter(), [10, 11, 12], [0.5, 0.0, -0.5], 0, [20, 21, 9], False),
            (PredictionRejecter(), [10, 11, 12], [0.5, 0.0, -0.5], 1, [20, 21, 9], False),
            (PredictionRejecter(), [10, 11, 12], [-5.0, -5.0, -5.0], 3, [20, 21, 22], False),
            (PredictionRejecter(), [20, 21, 9], [0.5, 0.0, -0.5], 1, [20, 21, 22], True),  # the same one again
        ],
    )
    def test_a_step(self, strategy, before, keep, step, expected, done):
        found = Output(output([20, 21, 22]).logits_BLV, jnp.array([[*keep, -9.0]]), judges=strategy.head_judges)
        after, _ = stepped(strategy, canvas(before, start=[7, 8, 9]), found, step=step)
        assert after.tokens_BL.tolist() == [[*expected, EOS]] and after.done_B.tolist() == [done]
        if isinstance(strategy, PredictionRejecter):
            assert after.written_BL.tolist() == [[token >= 20 for token in (*expected, EOS)]]

    @pytest.mark.parametrize(("strategy", "other"), [(Rejecter(), "prediction"), (PredictionRejecter(), "token")])
    def test_a_decoder_without_the_head_is_refused(self, strategy, other):
        headless = output([20, 21, 22])
        for found in (headless, headless.replace(keep_logits_BL=jnp.zeros((1, 4)), judges=other)):
            with refused("needs keep logits"):
                stepped(strategy, canvas([10, 11, 12]), found, step=0)

    def test_a_finished_sentence_of_a_packed_row_stays_written(self):
        """A head that judges predictions would hide it again while the other sentence goes on."""
        rows = 256
        segment_BL = jnp.array([[1] * 4 + [2] * 8] * rows)
        editable_BL = jnp.array([[True] * 3 + [False] + [True] * 7 + [False]] * rows)
        noise_BL, _ = Uniform().full()(keys(rows), jnp.where(editable_BL, 9, EOS), editable_BL, segment_BL, ids=IDS)
        start = from_tokens(noise_BL, noise_BL, editable_BL, segment_BL, IDS)
        decoder = judging(moody(seed=8), "prediction")
        refined = jax.jit(
            lambda: refine(keys(rows), start, decoder, PredictionRejecter(), num_steps=9, traced_steps=9)
        )()
        ended_BL = refined.canvas.done_BL & editable_BL
        assert refined.canvas.written_BL[ended_BL].all()
        assert (ended_BL[:, 0] != ended_BL[:, -2]).any() and refined.canvas.done_B.any()
