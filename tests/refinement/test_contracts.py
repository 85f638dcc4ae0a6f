"""Contracts that every corruption and every strategy must keep."""

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bounds import EntropyBound, Frechet
from correctors import GibbsCorrector, PredictorCorrector
from left_to_right import LeftToRight
from numpy.testing import assert_allclose, assert_array_equal
from support.fakes import (
    IDS,
    LENGTHS,
    assert_value,
    clean,
    judging,
    keys,
    moods,
    moody,
    numbered,
    packed,
    unseen,
    widened,
)
from support.refusals import refused

from padir.refinement import Agreed, Cycle, Fixpoint, Never, NothingOpen, Repetition, Steady, from_tokens, restore, stop
from padir.refinement.corruption import CORRUPTIONS, Mask, Uniform, draft
from padir.refinement.loop import advance, begin, propose, refine, steps
from padir.refinement.protocols import Corruption, Stop, Strategy
from padir.refinement.scores import Output, best_tokens, forbid
from padir.refinement.segments import choose_share, count_in_segment
from padir.refinement.stop import finished_without
from padir.refinement.strategies import (
    STRATEGIES,
    BlockGibbs,
    IndependentParallel,
    Padir,
    Remdm,
    get_strategy,
    parse_strategy,
)
from padir.text.ids import positions_in_segment

EOS, PADDING = IDS.eos, IDS.padding


@dataclasses.dataclass(frozen=True)
class EverySecond:
    """A corruption from outside: hides every second position."""

    rate: float = 0.5
    deterministic = True
    noise_kinds = frozenset({"mask"})

    def full(self):
        return Mask(1.0)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids):
        chosen_BL = choose_share(key_B, editable_BL, segment_BL, self.rate) & (
            positions_in_segment(segment_BL) % 2 == 0
        )
        return jnp.where(chosen_BL, ids.mask, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Confident(Never):
    """A rule from outside: ends a sentence when the decoder is nearly certain of all its tokens."""

    def step(self, before, output, proposal, memory):
        doubtful_BL = before.editable_BL & (output.best()[1] < -2.0)
        return finished_without(doubtful_BL, before.segment_BL), memory


@dataclasses.dataclass(frozen=True)
class StopsWhenConfident(Padir):
    """A strategy with a rule from outside."""

    stop = Confident()


@pytest.fixture(params=[*(cls() for cls in CORRUPTIONS.values()), EverySecond()], ids=lambda each: type(each).__name__)
def corruption(request):
    return request.param


# Beside every strategy as it comes: draws and schedules of those that come without, and strategies from outside.
OTHERS = (
    *(parse_strategy(f"{name}:temperature=1.0") for name in ("p2", "renoise")),
    *map(parse_strategy, ("constant:schedule=cosine", "threshold:schedule=doubling", "p2:judges=random")),
    parse_strategy("renoise:gamma=0.1,temperature=0.8,final_temperature=0.4,stop_entropy=0.005"),
)
DRAWING = (Remdm, BlockGibbs, IndependentParallel)  # at the last step, too
OUTSIDE = (
    LeftToRight(),
    EntropyBound(),
    Frechet(),
    GibbsCorrector(),
    PredictorCorrector(),
    PredictorCorrector(Padir()),
    StopsWhenConfident(),
)


def kinds_of_canvas(strategy):
    """The canvases that a strategy must cope with.

    A random one, on which an initial token may be written, and one of masks, on which none may; or one that says what a
    decontextualised decoder sees, which some need and another treats in its own way.
    """
    needs = getattr(strategy, "needs", ())
    if "decontextualised" in needs:
        return ["decontextualised"]
    if "pieces" in needs:
        return ["uniform"]
    seen = ["decontextualised"] if isinstance(strategy, IndependentParallel) else []
    return ["uniform", "mask_range", *seen]


def cases():
    """Every strategy on every kind of canvas; those on masks, where a strategy has another kind, are slow tests."""
    for strategy in (*(cls() for cls in STRATEGIES.values()), *OTHERS, *OUTSIDE):
        for kind in kinds_of_canvas(strategy):
            slow = kind == "mask_range" or strategy in OTHERS
            yield pytest.param((strategy, kind), marks=pytest.mark.slow if slow else (), id=f"{strategy}-{kind}")


@pytest.fixture(params=cases())
def case(request):
    return request.param


@pytest.fixture
def strategy(case):
    return case[0]


@pytest.fixture
def canvas_of(case):
    """Makes a draft of given lengths."""

    def make(length_B, max_length):
        kind = "mask" if case[1] == "decontextualised" else case[1]
        canvas = draft(keys(len(length_B)), length_B, max_length, CORRUPTIONS[kind](), IDS)
        return unseen(canvas) if case[1] == "decontextualised" else canvas

    return make


@pytest.fixture
def canvas(canvas_of):
    return canvas_of(LENGTHS, 12)


MOST_STEPS = 9
BUCKET = 20  # the width of what is done without jit, where each operation is compiled for each shape


def judged_by(strategy):
    """The tokens that the rejecter head of the strategy's decoder judges."""
    return getattr(strategy, "head_judges", "token")


@flax.struct.dataclass
class Wishful:
    """A decoder from outside, of a class and with arrays of its own: it adds a wish to the logits of `moody`."""

    wish_BLV: jax.Array
    tables: tuple[jax.Array, ...]
    judges: str = flax.struct.field(pytree_node=False)

    def __call__(self, canvas):
        rows = canvas.row_B
        wish_BLV = self.wish_BLV if rows is None else self.wish_BLV.at[rows].get(mode="clip")
        return judging(lambda canvas: moody(tables=self.tables)(canvas) + wish_BLV, self.judges)(canvas)


def refined_by(strategy, key_B, canvas, num_steps, *, wish=0.0, seed=0):
    """All rows refined and traced, by a decoder that adds `wish`, [V] or [B, L, V], to its logits, three at a time."""
    wish_BLV = jnp.broadcast_to(jnp.asarray(wish, jnp.float32), (*canvas.tokens_BL.shape, IDS.vocab_size))
    decoder = Wishful(wish_BLV, moods(seed), judged_by(strategy))
    return _refined_by(strategy, key_B, canvas, num_steps, decoder)


@functools.partial(jax.jit, static_argnums=0)
def _refined_by(strategy, key_B, canvas, num_steps, decoder):
    """One program for every number of steps, canvas, wish and seed of a shape."""
    how = {"num_steps": num_steps, "traced_steps": MOST_STEPS, "rows_at_once": 3}
    return refine(key_B, canvas, decoder, strategy, **how)


def noised(corruption, inputs=None, seed=0):
    """Noisy tokens and chosen positions of some rows, or of those of `clean`."""
    inputs = clean() if inputs is None else inputs
    return corruption(keys(len(inputs[0]), seed), *inputs, ids=IDS)


class TestCorruption:
    def test_is_a_frozen_hashable_corruption(self, corruption):
        assert_value(corruption, Corruption)

    def test_changes_chosen_positions_only_and_those_are_free(self, corruption):
        tokens_BL, editable_BL, _ = clean()
        noisy_BL, chosen_BL = noised(corruption)
        assert not (chosen_BL & ~editable_BL).any()
        assert_array_equal(jnp.where(chosen_BL, tokens_BL, noisy_BL), tokens_BL)
        assert noisy_BL.dtype == jnp.int32
        assert_array_equal(noised(corruption.full())[1], editable_BL)

    def test_noise_is_of_the_kinds_that_it_names(self, corruption):
        for each in (corruption, corruption.full()):
            noisy_BL, chosen_BL = noised(each, clean(jnp.full(200, 12)))
            noise = np.asarray(noisy_BL)[np.asarray(chosen_BL)]
            found = {
                "pieces": (noise >= IDS.first_regular) & (noise < IDS.end_regular),
                "mask": noise == IDS.mask,
                "mask_range": np.isin(noise, IDS.mask_range(12)),
            }
            assert {kind for kind, of_kind in found.items() if of_kind.any()} == each.noise_kinds
            assert np.any([*found.values()], axis=0).all()

    def test_is_the_same_jitted_and_depends_on_the_key_alone(self, corruption):
        plain = noised(corruption)
        jitted = jax.jit(lambda seed: noised(corruption, seed=seed))(0)
        assert_array_equal(plain, jitted)
        assert (noised(corruption, seed=1)[1] != plain[1]).any()

    def test_full_is_deterministic_if_it_says_so(self, corruption):
        one, two = (noised(corruption.full(), seed=seed)[0] for seed in (1, 2))
        assert bool((one == two).all()) == corruption.deterministic

    def test_a_row_does_not_depend_on_its_neighbours_or_its_bucket(self, corruption):
        together, wide = noised(corruption)[0], [widened(x, BUCKET) for x in clean()]
        assert_array_equal(noised(corruption, wide)[0][:, :12], together)
        for b in range(4):  # among copies of itself
            copies_B = np.full(4, b)
            alone = corruption(keys(4)[copies_B], *(x[copies_B] for x in clean()), ids=IDS)[0]
            assert_array_equal(alone[3], together[b])

    def test_corrupting_and_packing_commute(self, corruption):
        rows = numbered(clean([6] * 4, 6), clean([5] * 4, 5, seed=1))
        apart = [noised(corruption, packed([row]))[0] for row in rows]
        together_BL = noised(corruption, packed(rows))[0]
        assert_array_equal(together_BL[:, :6], apart[0][:, :6])
        assert_array_equal(together_BL[:, 6:11], apart[1][:, :5])


class TestStrategy:
    def test_is_a_frozen_hashable_strategy(self, strategy):
        assert_value(strategy, Strategy)

    @pytest.mark.parametrize("num_steps", [1, 7])
    def test_finds_the_answer_of_a_decoder_that_knows_it(self, strategy, canvas, num_steps):
        answer_BL, editable_BL, _ = clean()
        answer_BLV = 100.0 * jax.nn.one_hot(answer_BL, IDS.vocab_size)
        refined = refined_by(strategy, keys(4), canvas, num_steps, wish=answer_BLV)
        assert_array_equal(refined.tokens_BL, answer_BL)
        assert ((refined.canvas.score_BL > -1e-3) | ~editable_BL).all()

    @pytest.mark.parametrize("num_steps", [1, 4])
    def test_leaves_padding_and_eos_and_no_masked_position_and_no_special_id(self, strategy, canvas, num_steps):
        wish_V = jnp.zeros(IDS.vocab_size).at[jnp.array(IDS.special)].set(50.0)
        fixed_BL = ~np.asarray(canvas.editable_BL)
        for wish in (0.0, wish_V):
            refined = refined_by(strategy, keys(4), canvas, num_steps, wish=wish)
            for tokens_BL in refined.tokens_TBL:
                assert_array_equal(tokens_BL[fixed_BL], canvas.tokens_BL[fixed_BL])
            assert not np.isin(np.asarray(refined.tokens_BL)[~fixed_BL], IDS.special).any()
            assert np.asarray(refined.canvas.written_BL)[~fixed_BL].all()

    def test_only_the_key_makes_it_random(self, strategy, canvas):
        # The trace is compared, as the last pass of some writes the argmax, which may hide what was drawn before.
        one, again, other = (refined_by(strategy, keys(4, seed=seed), canvas, 7).tokens_TBL for seed in (0, 0, 1))
        assert_array_equal(one, again)
        assert (one != other).any() or not getattr(strategy, "temperature", 0)

    def test_is_the_same_without_jit_in_a_wider_canvas_with_other_rows(self, strategy, canvas, canvas_of):
        """The loop is left after two of three passes, and entered again with rows in other slots, one of them twice."""
        jitted, rows = refined_by(strategy, keys(4), canvas, 3), np.array([3, 1, 0, 1])
        with jax.disable_jit():
            decoder = judging(moody(), judged_by(strategy))
            state = begin(keys(4), canvas_of(LENGTHS, BUCKET), strategy, 3)
            for step in range(3):
                if step == 2:
                    state = jax.tree.map(lambda x: x[rows] if x.ndim else x, state)
                state = advance(state, decoder, strategy, 3)
        assert_array_equal(state.canvas.tokens_BL[:, :12], jitted.tokens_BL[rows])
        assert_array_equal(state.passes_B, jitted.passes_B[rows])

    @pytest.mark.parametrize("rows", [[3, 2, 1, 0], [0, 0, 0, 0]], ids=["other slots", "it halts before the others"])
    def test_a_row_does_not_depend_on_its_neighbours(self, strategy, canvas, rows):
        together, rows = refined_by(strategy, keys(4), canvas, 5), np.array(rows)
        moved = refined_by(strategy, keys(4)[rows], jax.tree.map(lambda x: x[rows], canvas), 5)
        assert_array_equal(moved.tokens_BL, together.tokens_BL[rows])
        assert_array_equal(moved.passes_B, together.passes_B[rows])

    def test_counts_passes_and_a_done_row_stays_as_it_is(self, strategy, canvas):
        refined = refined_by(strategy, keys(4), canvas, 9)
        assert ((refined.passes_B >= 1) & (refined.passes_B <= 9)).all()
        for b, passes in enumerate(refined.passes_B):
            after = np.asarray(refined.tokens_TBL[passes:, b])
            assert (after == after[0]).all()
            assert passes == 9 or refined.canvas.done_B[b]

    def test_one_step_is_the_argmax_of_the_draft(self, strategy, canvas):
        if isinstance(strategy, DRAWING) or strategy in OTHERS:
            pytest.skip("its tokens are drawn")
        masks_BL = jnp.where(canvas.editable_BL, IDS.mask, canvas.tokens_BL)
        for begun in (canvas, canvas.replace(tokens_BL=masks_BL, initial_BL=masks_BL)):
            refined = refined_by(strategy, keys(4), begun, 1)
            best_BL, score_BL = best_tokens(forbid(moody()(begun), IDS.special))
            assert_array_equal(refined.tokens_BL, jnp.where(canvas.editable_BL, best_BL, canvas.tokens_BL))
            assert_allclose(refined.canvas.score_BL, jnp.where(canvas.editable_BL, score_BL, 0.0), atol=1e-5)

    def test_without_draws_it_writes_what_the_chooser_chooses(self, strategy, canvas):
        if getattr(strategy, "temperature", 0):
            pytest.skip("its tokens are drawn")

        def decoder(canvas):
            def only_30(logits_BLV, open_BL):
                """At positions that are not open it chooses 31, which must not be written."""
                open_BL = canvas.editable_BL if open_BL is None else open_BL
                return jnp.where(open_BL, 30, 31), logits_BLV[..., 30]

            return judging(moody(), judged_by(strategy))(canvas).replace(chooser=only_30)

        *_, last = steps(keys(4), canvas, decoder, strategy, num_steps=3)
        assert (last.canvas.tokens_BL[canvas.editable_BL] == 30).all()

    def test_makes_a_step_between_two_training_stages(self, strategy, canvas, canvas_of):
        """There the numbers of steps are Python's own."""

        def step(canvas):
            output = judging(moody(), judged_by(strategy))(canvas)
            output = output.replace(logits_BLV=forbid(output.logits_BLV, IDS.special))
            begun = begin(keys(4), canvas, strategy, 2)
            key_B, memories = (
                jax.vmap(lambda key: jax.random.fold_in(key, 0))(keys(4)),
                (begun.memory, begun.stop_memory),
            )
            return propose(key_B, canvas, output, strategy, memories, step=0, num_steps=2)[0].tokens_BL

        jax.eval_shape(step, canvas)
        with jax.disable_jit():
            plain_BL = step(canvas_of(LENGTHS, BUCKET))[:, :12]
        assert_array_equal(plain_BL, refined_by(strategy, keys(4), canvas, 2).tokens_TBL[1])
        assert (plain_BL != canvas.tokens_BL).any()

    def test_segments_of_a_packed_row_do_not_see_each_other(self, case, strategy):
        """In some of four rows one segment halts before the other."""
        rows = [clean([n] * 4, n, seed=n) for n in (3, 6)]
        kind = "mask" if case[1] == "decontextualised" else case[1]
        noisy = [(noised(CORRUPTIONS[kind]().full(), packed([row]))[0][:, : len(row[0][0])], *row[1:]) for row in rows]

        def run(*rows):
            tokens_BL, editable_BL, segment_BL = packed(rows)
            canvas = from_tokens(tokens_BL, tokens_BL, editable_BL, segment_BL, IDS)
            canvas = unseen(canvas) if case[1] == "decontextualised" else canvas
            return refined_by(strategy, keys(4), canvas, 5).tokens_BL

        each = numbered(*noisy)  # a segment draws by its number, also alone in a row
        together_BL = run(*each)
        assert_array_equal(together_BL[:, :3], run(each[0])[:, :3])
        assert_array_equal(together_BL[:, 3:9], run(each[1])[:, :6])


RULES = [
    *(Never(), NothingOpen(), Fixpoint(), Cycle(), Steady(), Agreed(), Agreed(of_written=False)),
    *(Repetition(), Repetition(sweep=True), Confident()),
]


def test_every_rule_is_tested():
    known = {each for each in vars(stop).values() if getattr(each, "__module__", "") == stop.__name__}
    assert {each for each in known if hasattr(each, "step")} <= {*map(type, RULES)}


@functools.partial(jax.jit, static_argnums=0)
def one_pass(rule, canvas, memories, step, is_last):
    """The proposal of a pass, the positions that the rule says are finished, and the memories of strategy and rule."""
    output = Output(forbid(moody(seed=3)(canvas), IDS.special))
    num_steps = jnp.where(is_last, step + 1, 8)
    proposal = Padir("start").step(keys(40), canvas, output, memories[0], step=step, num_steps=num_steps)
    finished_BL, memory = rule.step(canvas, output, proposal, memories[1])
    return proposal, finished_BL, (proposal.memory, memory)


@pytest.fixture(params=RULES, ids=str)
def rule(request):
    return request.param


class TestStop:
    def passes(self, rule, is_last=False):
        """Packed rows: the canvas before each pass, the proposal, and what is finished; no sentence is held back."""
        rows = numbered(*(clean([n], n, seed=n) for n in (2, 3, 6)))
        tokens_BL, editable_BL, segment_BL = (jnp.repeat(each, 40, 0) for each in packed(rows))
        initial_BL = Uniform(1.0)(keys(40), tokens_BL, editable_BL, segment_BL, ids=IDS)[0]
        canvas = from_tokens(initial_BL, initial_BL, editable_BL, segment_BL, IDS)
        memories = Padir("start").init(keys(40), canvas), rule.init(canvas)
        for step in range(8):
            proposal, finished_BL, memories = one_pass(rule, canvas, memories, step, is_last)
            yield canvas, proposal, finished_BL
            canvas = restore(proposal.next, finished_BL, proposal.last)

    def test_is_a_frozen_hashable_rule(self, rule):
        assert_value(rule, Stop)

    @pytest.mark.parametrize("is_last", [False, True])
    def test_finishes_whole_sentences_and_leaves_no_position_hidden(self, rule, is_last):
        finished = 0
        for before, proposal, done_BL in self.passes(rule, is_last):
            count_BL = count_in_segment(done_BL, before.segment_BL)
            assert ((count_BL == 0) | (count_BL == count_in_segment(done_BL | True, before.segment_BL))).all()
            assert done_BL.dtype == bool and not (proposal.last.masked_BL & done_BL).any()
            finished += int((done_BL & before.editable_BL).sum())
        assert (finished > 0) == (rule != Never())


def test_an_unknown_strategy_lists_the_known_ones():
    with refused("padir, mask_predict, constant"):
        get_strategy("beam")
