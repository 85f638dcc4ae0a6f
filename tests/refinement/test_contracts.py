"""Contracts that every corruption and every strategy must keep."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, LENGTHS, clean, judging, keys, moods, moody, unseen

from padir.errors import PadirError
from padir.refinement.canvas import from_tokens
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.drafting import draft
from padir.refinement.loop import Part, refine
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.scores import forbid
from padir.refinement.strategies import STRATEGIES, get_strategy, parse_strategy

EOS, PADDING = IDS.eos, IDS.padding


@pytest.fixture(params=CORRUPTIONS)
def corruption(request):
    return CORRUPTIONS[request.param]()


# Beside every strategy as it comes: draws and schedules of those that come without.
OTHERS = (
    *(f"{name}:temperature=1.0" for name in ("p2", "renoise", "predictor_corrector")),
    *("constant:schedule=cosine", "threshold:schedule=doubling"),
)


def kinds_of_canvas(name):
    """The canvases that a strategy must cope with.

    A random one, on which a start token may be written, and one of masks, on which none may; or one that says what a
    decontextualised decoder sees, which some need and another treats in its own way.
    """
    needs = getattr(STRATEGIES[name], "needs", ())
    if "decontextualised" in needs:
        return ["decontextualised"]
    if "pieces" in needs:
        return ["uniform"]
    return ["uniform", "mask_range", *(["decontextualised"] if name == "independent_parallel" else [])]


def cases():
    """Every strategy on every kind of canvas; those on masks, where a strategy has another kind, are slow tests."""
    for text in (*STRATEGIES, *OTHERS):
        for kind in kinds_of_canvas(text.partition(":")[0]):
            slow = kind == "mask_range" or text in OTHERS
            yield pytest.param((text, kind), marks=pytest.mark.slow if slow else (), id=f"{text}-{kind}")


@pytest.fixture(params=cases())
def case(request):
    return request.param


@pytest.fixture
def strategy(case):
    return parse_strategy(case[0])


@pytest.fixture
def canvas_of(case):
    """Makes a draft of given lengths."""

    def make(length_B, max_length):
        kind = "mask" if case[1] == "decontextualised" else case[1]
        canvas = draft(keys(len(length_B)), length_B, max_length, CORRUPTIONS[kind](), IDS)
        return unseen(canvas) if case[1] == "decontextualised" else canvas

    return make


MOST_STEPS = 9
BUCKET = 20  # the width of a row alone, in one program for all tests that have one


def refined_by(strategy, key_B, canvas, num_steps, *, wish=0.0, seed=0, banned_ids=None, rows_at_once=None):
    """All rows refined and traced, by a decoder that adds `wish`, [V] or [B, L, V], to its logits."""
    wish_BLV = jnp.broadcast_to(jnp.asarray(wish, jnp.float32), (*canvas.tokens_BL.shape, IDS.vocab_size))
    return _refined_by(strategy, banned_ids, rows_at_once, key_B, canvas, num_steps, wish_BLV, moods(seed))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _refined_by(strategy, banned_ids, rows_at_once, key_B, canvas, num_steps, wish_BLV, tables):
    """One program for every number of steps, canvas, wish and seed of a shape."""
    decoder = moody(canvas.segment_BL, tables=tables)

    def wishful(*seen, rows=None):
        return decoder(*seen, rows=rows) + (wish_BLV if rows is None else wish_BLV.at[rows].get(mode="clip"))

    return refine(
        key_B,
        canvas,
        judging(wishful),
        strategy,
        num_steps=num_steps,
        banned_ids=banned_ids,
        trace=MOST_STEPS,
        part=Part(rows_at_once=rows_at_once),
    )


@functools.partial(jax.jit, static_argnames="strategy")
def refined_in_part(strategy, key_B, canvas, first, end, memory=None):
    """Steps first .. end - 1 of five."""
    part = Part(first, end, memory)
    return refine(key_B, canvas, judging(moody(canvas.segment_BL)), strategy, num_steps=5, part=part)


@pytest.fixture
def five_steps(strategy, canvas_of):
    """All rows together, traced."""
    return refined_by(strategy, keys(4), canvas_of(LENGTHS, 12), 5)


class TestCorruption:
    def test_is_a_frozen_hashable_corruption(self, corruption):
        assert isinstance(corruption, Corruption)
        assert corruption == dataclasses.replace(corruption) and hash(corruption) == hash(
            dataclasses.replace(corruption)
        )
        with pytest.raises(dataclasses.FrozenInstanceError):
            corruption.rate = 0.5

    def test_changes_chosen_positions_only_and_those_are_free(self, corruption):
        tokens_BL, free_BL, segment_BL = clean()
        noisy_BL, chosen_BL = corruption(keys(4), tokens_BL, free_BL, segment_BL, ids=IDS)
        assert not (chosen_BL & ~free_BL).any()
        np.testing.assert_array_equal(jnp.where(chosen_BL, 0, noisy_BL), jnp.where(chosen_BL, 0, tokens_BL))
        assert noisy_BL.dtype == jnp.int32

    def test_full_replaces_every_free_position(self, corruption):
        tokens_BL, free_BL, segment_BL = clean()
        _, chosen_BL = corruption.full()(keys(4), tokens_BL, free_BL, segment_BL, ids=IDS)
        np.testing.assert_array_equal(chosen_BL, free_BL)

    def test_noise_is_regular_or_a_mask(self, corruption):
        tokens_BL, free_BL, segment_BL = clean(jnp.full(200, 12))
        noisy_BL, chosen_BL = corruption.full()(keys(200), tokens_BL, free_BL, segment_BL, ids=IDS)
        noise = np.asarray(noisy_BL)[np.asarray(chosen_BL)]
        regular = (noise >= IDS.first_regular) & (noise < IDS.end_regular)
        assert (regular | (noise == IDS.mask) | np.isin(noise, IDS.mask_range(12))).all()

    def test_is_the_same_jitted_and_depends_on_the_key_alone(self, corruption):
        inputs = clean()
        plain = corruption(keys(4), *inputs, ids=IDS)
        jitted = jax.jit(lambda key_B: corruption(key_B, *inputs, ids=IDS))(keys(4))
        np.testing.assert_array_equal(plain[0], jitted[0])
        np.testing.assert_array_equal(plain[1], jitted[1])
        other = corruption(keys(4, seed=1), *inputs, ids=IDS)
        assert (other[1] != plain[1]).any()

    def test_full_is_deterministic_if_it_says_so(self, corruption):
        inputs = clean()
        one = corruption.full()(keys(4, seed=1), *inputs, ids=IDS)[0]
        two = corruption.full()(keys(4, seed=2), *inputs, ids=IDS)[0]
        assert bool((one == two).all()) == corruption.deterministic

    def test_a_row_does_not_depend_on_its_neighbours_or_its_bucket(self, corruption):
        tokens_BL, free_BL, segment_BL = clean()
        wide = [jnp.pad(x, ((0, 0), (0, 8))) for x in (tokens_BL, free_BL, segment_BL)]
        together = corruption(keys(4), tokens_BL, free_BL, segment_BL, ids=IDS)[0]
        wider = corruption(keys(4), *wide, ids=IDS)[0]
        np.testing.assert_array_equal(wider[:, :12], together)
        for b in range(4):
            alone = corruption(keys(4)[b : b + 1], *(x[b : b + 1] for x in clean()), ids=IDS)[0]
            np.testing.assert_array_equal(alone[0], together[b])

    def test_corrupting_and_packing_commute(self, corruption):
        (tokens_1L, free_1L, segment_1L), (tokens_2L, free_2L, segment_2L) = (clean([6], 6), clean([5], 5, seed=1))
        key_B = keys(1)
        apart = [
            corruption(key_B, tokens_1L, free_1L, segment_1L, ids=IDS)[0],
            corruption(key_B, tokens_2L, free_2L, 2 * segment_2L, ids=IDS)[0],
        ]
        packed = (jnp.concatenate(pair, 1) for pair in ((tokens_1L, tokens_2L), (free_1L, free_2L)))
        packed_segment = jnp.concatenate([segment_1L, 2 * segment_2L], 1)
        together = corruption(key_B, *packed, packed_segment, ids=IDS)[0]
        np.testing.assert_array_equal(jnp.concatenate(apart, 1), together)


class TestStrategy:
    def test_is_a_frozen_hashable_strategy(self, strategy):
        assert isinstance(strategy, Strategy)
        assert strategy == dataclasses.replace(strategy) and hash(strategy) == hash(dataclasses.replace(strategy))

    @pytest.mark.parametrize("num_steps", [1, 7])
    def test_finds_the_answer_of_a_decoder_that_knows_it(self, strategy, canvas_of, num_steps):
        answer_BL, free_BL, _ = clean()
        answer_BLV = 100.0 * jax.nn.one_hot(answer_BL, IDS.vocab_size)
        refined = refined_by(strategy, keys(4), canvas_of(LENGTHS, 12), num_steps, wish=answer_BLV)
        np.testing.assert_array_equal(refined.tokens_BL, answer_BL)
        assert ((refined.canvas.score_BL > -1e-3) | ~free_BL).all()

    @pytest.mark.parametrize("num_steps", [1, 4])
    def test_leaves_padding_and_eos_and_no_hidden_position(self, strategy, canvas_of, num_steps):
        canvas = canvas_of(LENGTHS, 12)
        refined = refined_by(strategy, keys(4), canvas, num_steps)
        fixed_BL = ~np.asarray(canvas.free_BL)
        for tokens_BL in refined.tokens_TBL:
            np.testing.assert_array_equal(tokens_BL[fixed_BL], canvas.tokens_BL[fixed_BL])
        written = np.asarray(refined.tokens_BL)[~fixed_BL]
        assert not np.isin(written, IDS.special).any()
        assert (np.asarray(refined.canvas.score_BL)[~fixed_BL] < 0).all()

    def test_never_writes_forbidden_ids(self, strategy, canvas_of):
        canvas = canvas_of(LENGTHS, 12)
        wish_V = jnp.zeros(IDS.vocab_size).at[jnp.array(IDS.special)].set(50.0)
        free = np.asarray(canvas.free_BL)
        refined = refined_by(strategy, keys(4), canvas, 3, wish=wish_V)
        assert not np.isin(np.asarray(refined.tokens_BL)[free], IDS.special).any()
        allowed = refined_by(strategy, keys(4), canvas, 3, wish=wish_V, banned_ids=())
        assert np.isin(np.asarray(allowed.tokens_BL)[free], IDS.special).any()

    def test_is_the_same_jitted_and_depends_on_the_key_alone(self, strategy, canvas_of):
        canvas = canvas_of(LENGTHS, 12)
        with jax.disable_jit():
            plain = refine(keys(4), canvas, judging(moody(canvas.segment_BL)), strategy, num_steps=2, trace=True)
        jitted = refined_by(strategy, keys(4), canvas, 2)
        np.testing.assert_array_equal(plain.tokens_TBL, jitted.tokens_TBL[:3])
        np.testing.assert_array_equal(plain.passes_B, jitted.passes_B)
        if getattr(strategy, "temperature", 0):
            # The trace is compared, as the last pass of some writes the argmax, which may hide what was drawn before.
            one, other = (refined_by(strategy, keys(4, seed=seed), canvas, 7).tokens_TBL for seed in (0, 1))
            assert (one != other).any()

    def test_a_row_does_not_depend_on_its_neighbours_or_its_bucket(self, strategy, canvas_of, five_steps):
        together = five_steps
        alone = refined_by(strategy, keys(1), canvas_of(LENGTHS[:1], BUCKET), 5)  # it halts before the others
        np.testing.assert_array_equal(alone.tokens_BL[0, :12], together.tokens_BL[0])
        assert alone.passes_B[0] == together.passes_B[0]
        reverse = jax.tree.map(lambda x: x[::-1], canvas_of(LENGTHS, 12))  # each row in another slot
        reverse = refined_by(strategy, keys(4)[::-1], reverse, 5)
        np.testing.assert_array_equal(reverse.tokens_BL[::-1], together.tokens_BL)

    def test_counts_passes_and_a_done_row_stays_as_it_is(self, strategy, canvas_of):
        refined = refined_by(strategy, keys(4), canvas_of(LENGTHS, 12), 9)
        assert ((refined.passes_B >= 1) & (refined.passes_B <= 9)).all()
        for b, passes in enumerate(refined.passes_B):
            after = np.asarray(refined.tokens_TBL[passes:, b])
            assert (after == after[0]).all()
            assert passes == 9 or refined.canvas.done_B[b]

    def test_rows_may_go_through_the_decoder_in_groups(self, strategy, canvas_of, five_steps):
        grouped = refined_by(strategy, keys(4), canvas_of(LENGTHS, 12), 5, rows_at_once=3)
        np.testing.assert_array_equal(grouped.tokens_TBL, five_steps.tokens_TBL)
        np.testing.assert_array_equal(grouped.passes_B, five_steps.passes_B)

    def test_the_loop_can_be_left_and_entered_again_with_other_rows(self, strategy, canvas_of, five_steps):
        early = refined_in_part(strategy, keys(4), canvas_of(LENGTHS, 12), 0, 2)
        rows = jnp.array([3, 1])
        key_B, canvas, memory = jax.tree.map(lambda x: x[rows], (keys(4), early.canvas, early.memory))
        late = refined_in_part(strategy, key_B, canvas, 2, 5, memory)
        np.testing.assert_array_equal(late.tokens_BL, five_steps.tokens_BL[rows])
        np.testing.assert_array_equal(early.passes_B[rows] + late.passes_B, five_steps.passes_B[rows])

    def test_makes_a_step_between_two_training_stages(self, strategy, canvas_of):
        """There the numbers of steps are Python's own."""
        canvas = canvas_of(LENGTHS, 12)
        output_fn = judging(moody(canvas.segment_BL))
        seen = (canvas.tokens_BL,) if canvas.visible_BLL is None else (canvas.tokens_BL, canvas.visible_BLL)
        output = output_fn(*seen)
        output = output.replace(logits_BLV=forbid(output.logits_BLV, IDS.special))
        key_B, memory = keys(4), strategy.init(keys(4), canvas)
        plain, _ = strategy.step(key_B, canvas, output, memory, step=0, num_steps=2)
        traced, _ = jax.jit(lambda step, n: strategy.step(key_B, canvas, output, memory, step=step, num_steps=n))(0, 2)
        np.testing.assert_array_equal(plain.tokens_BL, traced.tokens_BL)
        np.testing.assert_array_equal(jnp.where(canvas.free_BL, 0, plain.tokens_BL - canvas.tokens_BL), 0)
        assert (plain.tokens_BL != canvas.tokens_BL).any()

    @pytest.mark.parametrize("seed", range(2))  # in some of them one segment halts before the other
    def test_segments_of_a_packed_row_do_not_see_each_other(self, case, strategy, seed):
        rows = [clean([n], n, seed=n + seed) for n in (3, 6)]
        kind = "mask" if case[1] == "decontextualised" else case[1]
        noisy = [CORRUPTIONS[kind]().full()(keys(1, seed), *row, ids=IDS)[0] for row in rows]

        def run(*row):
            tokens_BL, free_BL, segment_BL = (jnp.pad(x, ((0, 0), (0, BUCKET - x.shape[1]))) for x in row)
            canvas = from_tokens(tokens_BL, tokens_BL, free_BL, segment_BL, IDS)
            canvas = unseen(canvas) if case[1] == "decontextualised" else canvas
            return refined_by(strategy, keys(1), canvas, 5, seed=seed).tokens_BL

        # A segment draws by its number, also alone in a row.
        each = [(tokens, free, n * segment) for n, tokens, (_, free, segment) in zip((1, 2), noisy, rows, strict=True)]
        alone = [run(*row) for row in each]
        together = run(*(jnp.concatenate(parts, 1) for parts in zip(*each, strict=True)))
        np.testing.assert_array_equal(jnp.concatenate([alone[0][:, :3], alone[1][:, :6]], 1), together[:, :9])


def test_an_unknown_strategy_lists_the_known_ones():
    with pytest.raises(PadirError, match="padir, mask_predict, constant"):
        get_strategy("beam")
