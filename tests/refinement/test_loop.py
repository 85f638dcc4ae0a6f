import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.tree_util import Partial
from numpy.testing import assert_allclose, assert_array_equal
from support.closeness import assert_close
from support.fakes import IDS, keys, moods, moody, oracle
from support.refusals import refused

from padir.refinement import Canvas, Fixpoint, Mask, Never, NothingOpen, Output, Proposal, Uniform, draft, refine, steps
from padir.refinement.scores import forbid
from padir.refinement.strategies import MaskPredict, Padir, SundaeSampling, Threshold

LENGTHS = jnp.array([4, 9])


def start(corruption=None):
    return draft(keys(2), LENGTHS, 9, corruption or Uniform(), IDS)


def test_the_first_pass_finds_the_answer_and_the_second_halts():
    canvas = start()
    answer_BL = jnp.where(canvas.editable_BL, 20 + jnp.arange(9), canvas.tokens_BL)
    refined = refine(keys(2), canvas, oracle(answer_BL), Padir(), num_steps=10)
    assert refined.passes_B.tolist() == [2, 2]
    assert refined.canvas.done_B.all()


def test_rows_halt_on_their_own():
    canvas = start()
    canvas = canvas.replace(tokens_BL=jnp.where(canvas.editable_BL, 10 + jnp.arange(9), canvas.tokens_BL))

    def decoder(canvas):  # row 0 is told its answer; row 1 moves on by one piece each pass
        tokens_BL = canvas.tokens_BL
        moving = jnp.where(tokens_BL + 1 < IDS.end_regular, tokens_BL + 1, IDS.first_regular)
        return 9.0 * jax.nn.one_hot(jnp.stack([20 + jnp.arange(9), moving[1]]), IDS.vocab_size)

    refined = refine(keys(2), canvas, decoder, Padir(), num_steps=6, traced_steps=6)
    assert refined.passes_B.tolist() == [2, 6]
    assert refined.tokens_BL[1, :8].tolist() == list(range(16, 24))
    assert_array_equal(refined.tokens_TBL[2:, 0], refined.tokens_TBL[2:3, 0].repeat(5, 0))


def test_rows_that_are_done_are_left_out_of_the_groups():
    canvas = draft(keys(5), jnp.full(5, 9), 9, Uniform(), IDS)
    answer_BL = jnp.broadcast_to(20 + jnp.arange(9), (5, 9))
    decoded = []

    def decoder(canvas):  # row 1 moves on by one piece each pass, the others are told their answer
        tokens_BL, rows = canvas.tokens_BL, canvas.row_B
        jax.debug.callback(lambda rows: decoded.append(rows.tolist()), rows)
        moving = jnp.where(tokens_BL + 1 < IDS.end_regular, tokens_BL + 1, IDS.first_regular)
        next_BL = jnp.where((rows == 1)[:, None], moving, answer_BL.at[rows].get(mode="clip"))
        return 9.0 * jax.nn.one_hot(next_BL, IDS.vocab_size)

    refined = refine(keys(5), canvas, decoder, Padir(), num_steps=4, rows_at_once=2)
    jax.block_until_ready(refined.tokens_BL)
    jax.effects_barrier()
    assert refined.passes_B.tolist() == [2, 4, 2, 2, 2]
    assert decoded == 2 * [[0, 1], [2, 3], [4, 5]] + 2 * [[1, 0]]  # 5: there is no such row


def test_found_tokens_are_used():
    canvas = start()
    answer_BL = jnp.where(canvas.editable_BL, 20 + jnp.arange(9), canvas.tokens_BL)

    def decoder(canvas):
        logits_BLV = oracle(answer_BL)(canvas)
        return Output(logits_BLV, found_BL=(answer_BL + 1, jnp.full(answer_BL.shape, -0.5)))

    free = np.asarray(canvas.editable_BL)
    refined = refine(keys(2), canvas, decoder, Padir(), num_steps=1)
    assert_array_equal(refined.tokens_BL[free], answer_BL[free] + 1)


def test_n_steps_mean_n_decoder_passes():
    passes = []

    def decoder(canvas):
        tokens_BL = canvas.tokens_BL
        jax.debug.callback(lambda: passes.append(1))
        moving = jnp.where(tokens_BL + 1 < IDS.end_regular, tokens_BL + 1, IDS.first_regular)
        return 9.0 * jax.nn.one_hot(moving, IDS.vocab_size)

    refined = refine(keys(2), start(), decoder, Padir(), num_steps=5)
    jax.block_until_ready(refined.tokens_BL)
    jax.effects_barrier()
    assert len(passes) == 5 and refined.passes_B.tolist() == [5, 5]


@pytest.mark.parametrize("remask", ["previous", "start"])
def test_halting_gives_what_all_steps_would_have_given(remask):
    """The strategy with its stop test undone runs every step and ends in the same tokens."""

    class Restless(Padir):
        stop = Never()

    @functools.partial(jax.jit, static_argnums=0)
    def run(strategy, canvas, tables):
        return refine(keys(6), canvas, moody(tables=tables), strategy, num_steps=12)

    halted = 0
    for seed in range(4):
        canvas = draft(keys(6, seed), jnp.array([3, 4, 5, 6, 7, 9]), 9, Uniform(), IDS)
        one, two = (
            run(strategy, canvas, moods(seed))
            for strategy in (Padir(remask, end_cycles=False), Restless(remask, end_cycles=False))
        )
        assert_array_equal(one.tokens_BL, two.tokens_BL)
        halted += int((one.passes_B < 12).sum())
    assert halted > 0


def test_trace_begins_with_the_draft_and_ends_with_the_answer():
    canvas = start(Mask())
    refined = refine(keys(2), canvas, moody(), MaskPredict(), num_steps=4, traced_steps=4)
    assert refined.tokens_TBL.shape == refined.scores_TBL.shape == (5, 2, 9)
    assert_array_equal(refined.tokens_TBL[0], canvas.tokens_BL)
    assert_array_equal(refined.tokens_TBL[-1], refined.tokens_BL)
    plain = refine(keys(2), canvas, moody(), MaskPredict(), num_steps=4)
    assert_array_equal(plain.tokens_BL, refined.tokens_BL)
    assert plain.tokens_TBL is None
    # A score is known exactly where something was written: all positions of a mask are masked, EOS and padding given.
    masked_TBL = np.asarray(refined.tokens_TBL == IDS.mask) | ~np.asarray(canvas.editable_BL)
    assert_array_equal(np.isnan(refined.scores_TBL), masked_TBL)
    assert masked_TBL[1].sum() > masked_TBL[-1].sum()


@pytest.mark.parametrize("strategy", [MaskPredict(), Padir()])
def test_a_trace_with_room_repeats_the_answer(strategy):
    """The number of steps may then be traced; the schedule and the random draws are those of that number."""
    canvas = start(Mask() if isinstance(strategy, MaskPredict) else Uniform())
    decoder = moody()
    exact = refine(keys(2), canvas, decoder, strategy, num_steps=3, traced_steps=3)
    roomy = jax.jit(lambda num_steps: refine(keys(2), canvas, decoder, strategy, num_steps=num_steps, traced_steps=5))(
        3
    )
    assert roomy.tokens_TBL.shape == roomy.scores_TBL.shape == (6, 2, 9)
    assert_array_equal(roomy.tokens_TBL[:4], exact.tokens_TBL)
    assert_allclose(roomy.scores_TBL[:4], exact.scores_TBL, rtol=1e-5)
    assert_array_equal(roomy.tokens_TBL[4:], np.stack([exact.tokens_BL] * 2))
    with refused("num_steps most 2, number steps got 3"):
        refine(keys(2), canvas, decoder, strategy, num_steps=3, traced_steps=2)


def test_a_certain_token_counts_as_written():
    """Its log-probability is 0, which a masked position has, too."""
    certain = refine(
        keys(2),
        start(),
        lambda c: 500.0 * jax.nn.one_hot(c.tokens_BL * 0 + 20, 64),
        Padir(),
        num_steps=1,
        traced_steps=1,
    )
    scores_BL = np.asarray(certain.scores_TBL[1])
    assert (scores_BL[np.asarray(start().editable_BL)] == 0).all() and np.isnan(scores_BL).any()
    assert np.isnan(certain.scores_TBL[0]).all()


def test_score_is_the_log_probability_of_what_stands():
    canvas = start()
    decoder = moody()
    refined = refine(keys(2), canvas, decoder, Padir(), num_steps=1)
    log_prob_BLV = jax.nn.log_softmax(forbid(decoder(canvas), IDS.special))
    expected_BL = jnp.take_along_axis(log_prob_BLV, refined.tokens_BL[..., None], -1)[..., 0]
    assert_close(refined.canvas.score_BL, jnp.where(canvas.editable_BL, expected_BL, 0.0))


def test_visible_positions_reach_the_decoder():
    canvas = start()
    canvas = canvas.replace(visible_BLL=jnp.ones((2, 9, 9), bool))
    seen = []

    def decoder(canvas):
        seen.append(canvas.visible_BLL.shape)
        return Output(oracle(jnp.full((2, 9), 20))(canvas))

    refine(keys(2), canvas, decoder, Padir(), num_steps=1)
    assert seen and set(seen) == {(2, 9, 9)}


@pytest.mark.parametrize("strategy", [MaskPredict(), Padir(), Padir(temperature=1.0)], ids=str)
def test_the_generator_yields_what_the_trace_holds(strategy):
    canvas = start(Mask() if isinstance(strategy, MaskPredict) else Uniform())
    whole = refine(keys(2), canvas, moody(), strategy, num_steps=6, traced_steps=6)
    states = [*steps(keys(2), canvas, moody(), strategy, num_steps=6)]
    assert len(states) == int(whole.passes_B.max()) + 1
    for state, tokens_BL in zip(states, whole.tokens_TBL, strict=False):
        assert_array_equal(state.canvas.tokens_BL, tokens_BL)
    assert_array_equal(states[-1].canvas.tokens_BL, whole.tokens_BL)
    assert_array_equal(states[-1].passes_B, whole.passes_B)
    assert_array_equal(states[-1].canvas.done_BL, whole.canvas.done_BL)


def test_arrays_of_a_partial_decoder_are_arguments_of_the_generator():
    """Another array then needs no other program."""
    traced = []

    def answer(answer_BL, canvas):
        traced.append(answer_BL)
        return oracle(answer_BL)(canvas)

    for token in (20, 21):
        decoder = Partial(answer, jnp.full((2, 9), token))
        *_, last = steps(keys(2), start(), decoder, Padir(remask="none"), num_steps=4)
        assert (last.canvas.tokens_BL[:, 0] == token).all()
    assert len(traced) == 1


class TestNan:
    """A decoder whose logits at one position are NaN."""

    @staticmethod
    def decoder(canvas):
        logits_BLV = moody()(canvas)
        return jnp.where(jnp.arange(9)[:, None] == 2, jnp.nan, logits_BLV)

    @pytest.mark.parametrize("strategy", [Padir(), MaskPredict(), Threshold(), SundaeSampling()])
    def test_the_position_keeps_its_id_and_the_others_are_written(self, strategy):
        canvas = start()
        run = jax.jit(lambda: refine(keys(2), canvas, self.decoder, strategy, num_steps=4, traced_steps=4))
        refined = run()
        assert_array_equal(refined.tokens_TBL[:, :, 2], jnp.stack([canvas.tokens_BL[:, 2]] * 5))
        assert not np.isnan(refined.canvas.score_BL).any()
        assert_array_equal(refined.canvas.masked_BL, canvas.editable_BL & (jnp.arange(9) == 2))

    def test_outside_jit_it_is_an_error(self):
        with refused("logits NaN check decoder"):
            refine(keys(2), start(), self.decoder, Padir(), num_steps=2)
        with refused("logits NaN check decoder"):
            list(steps(keys(2), start(), self.decoder, Padir(), num_steps=2))

    def test_inside_jit_checkify_finds_it(self):
        for decoder, found in ((self.decoder, True), (moody(), False)):
            run = functools.partial(refine, keys(2), start(), decoder, Padir(), num_steps=2)
            error, _ = jax.jit(checkify.checkify(lambda run=run: run().tokens_BL, checkify.nan_checks))()
            assert ("nan generated by primitive" in (error.get() or "")) == found


@dataclasses.dataclass(frozen=True)
class Own:
    """A user's strategy, whose step gives what a function makes of the canvas."""

    make: Callable[[Canvas], object]
    begun: object = dataclasses.field(default_factory=lambda: jnp.zeros(2))
    stop: Any = Fixpoint()

    def init(self, key_B, canvas):
        return self.begun

    def step(self, key_B, canvas, output, memory, *, step, num_steps):
        return self.make(canvas)


@dataclasses.dataclass(frozen=True)
class Ends:
    """A user's rule, whose step gives what a function makes of the canvas."""

    make: Callable[[Canvas], object]
    memory: object = ()

    def init(self, canvas):
        return self.memory

    def step(self, before, output, proposal, memory):
        return self.make(before)


@dataclasses.dataclass(frozen=True)
class Noise:
    """A user's corruption, which gives what a function makes of the tokens."""

    make: Callable[[Any], object]
    deterministic = True
    noise_kinds = frozenset({"mask"})

    def full(self):
        return self

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
        return self.make(tokens_BL)


def test_a_draft_has_noise_at_editable_positions_alone():
    everywhere = Noise(lambda tokens_BL: (jnp.full_like(tokens_BL, IDS.mask), tokens_BL == tokens_BL))
    assert_array_equal(start(everywhere).tokens_BL, start(Mask()).tokens_BL)


def stopping(stop):
    """A strategy that changes nothing and stops as a user's rule says."""
    return Own(lambda canvas: Proposal(canvas, canvas, jnp.zeros(2)), stop=stop)


@pytest.mark.usefixtures("unchecked")
class TestWrongArguments:
    """Checked while a program is traced, without jaxtyping, as a user calls `refine` with a decoder of his own."""

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"key_B": jax.random.key(0)}, "key_B key each 2 rows, got shape () key<fry>"),
            ({"key_B": keys(3)}, "got shape (3,) key<fry>: write jax.random.split(jax.random.key(0), 2)"),
            ({"key_B": jax.random.PRNGKey(0)}, "key_B got shape (2,) uint32"),
            ({"key_B": 3}, "key_B got shape () <class 'int'>"),
            ({"decoder": 3}, "decoder function Canvas, got 3"),
            ({"decoder": int}, "decoder function Canvas, got <class 'int'>"),
            (lambda: {"canvas": start().replace(tokens_BL=jnp.zeros((2, 9)))}, "canvas.tokens_BL integer numb"),
            ({"rows_at_once": 0}, "rows_at_once least 1"),
            ({"traced_steps": "all"}, "traced_steps whole number, got 'all'"),
            ({"strategy": Own(lambda canvas: canvas)}, "Own.step function gives Proposal"),
            ({"strategy": Own(lambda canvas: Proposal(canvas, canvas, ()))}, "memory Own.step like init's"),
            ({"strategy": Own(lambda canvas: Proposal(canvas, canvas, jnp.zeros(2, int)))}, "like float32 int32"),
            ({"strategy": Own(lambda canvas: None, 0)}, "a leaf memory Own.init shape [2], got int"),
            ({"strategy": stopping(NothingOpen)}, "Own.stop instance init step NothingOpen()"),
            ({"strategy": stopping(Ends(lambda canvas: (), 0))}, "a leaf memory Own.init stop rule shape [2]"),
            ({"strategy": stopping(Ends(lambda canvas: canvas.done_BL))}, "Ends.step gives (finished_BL, memory)"),
            ({"strategy": stopping(Ends(lambda canvas: (canvas.done_B, ())))}, "finished_BL Ends [2, 9]"),
            ({"strategy": stopping(Ends(lambda canvas: (canvas.done_BL, 0)))}, "memory Ends.step like init's"),
            ({"strategy": Padir}, "strategy instance , got <class write Padir"),
            ({"strategy": "padir"}, "strategy instance"),
            ({"canvas": jnp.zeros((2, 9), int)}, "canvas Canvas"),
            (lambda: {"canvas": start().replace(score_BL=jnp.zeros((2, 8)))}, "canvas.score_BL [2, 9]"),
            ({"num_steps": 0}, "num_steps least 1, got 0"),
            ({"num_steps": 2.0}, "num_steps 2.0"),
            ({"num_steps": jnp.zeros(3, int)}, "num_steps got '[3] int32'"),
            ({"num_steps": jnp.int32(0)}, "num_steps least 1, got 0"),
            ({"num_steps": jnp.int32(3), "traced_steps": 2}, "num_steps most 2, got 3"),
            ({"decoder": lambda canvas: jnp.zeros((2, 9, 63))}, "logits [2, 9, 64] got '[2, 9, 63] f"),
            ({"decoder": lambda canvas: jnp.zeros((2, 9, 64), int)}, "logits floating numbers, got"),
            ({"decoder": lambda canvas: None}, "logits got NoneType"),
            ({"decoder": lambda canvas: Output(moody()(canvas), jnp.zeros(9))}, "keep_logits_BL [2, 9]"),
        ],
    )  # fmt: skip
    def test_are_refused_by_name(self, changes, words):
        given: dict = {"key_B": keys(2), "canvas": start(), "decoder": moody(), "strategy": Padir(), "num_steps": 2}
        given |= changes() if callable(changes) else changes
        with refused(words):
            refine(**given)

    def test_are_refused_before_the_first_step(self):
        for wrong in ({"decoder": 3}, {"num_steps": 0}):
            given: dict = {"decoder": moody(), "strategy": Padir(), "num_steps": 2} | wrong
            with refused(f"{[*wrong][0]}"):
                next(steps(keys(2), start(), **given))

    @pytest.mark.parametrize(
        ("lengths", "corruption", "words"),
        [
            ([4, 10], Uniform(), "length_B [1, 9]"),
            ([0, 4], Uniform(), "length_B [1, 9]"),
            ([4.5, 3.0], Uniform(), "length_B whole numbers"),
            ([4, 3], Uniform, "corruption instance"),
            ([4, 3], Noise(lambda tokens_BL: tokens_BL), "Noise function gives (noisy_BL, chosen_BL)"),
        ],
    )
    def test_drafts(self, lengths, corruption, words):
        with refused(words):
            draft(keys(2), lengths, 9, corruption, IDS)
