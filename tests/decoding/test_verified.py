"""Verified decoding: plain greedy search's tokens and plain sampling's distribution, whatever is proposed."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS
from support.tiny import pairs, rows_of, tiny_model
from support.tiny_model import random_model_dir

from padir.decoding.autoregressive import SearchInputs, write_targets
from padir.decoding.draft import Drafter, Proposal, Verified, encoder_sum, window
from padir.decoding.drafters import DRAFTERS, Copy, Jacobi, load_draft
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding, resolve
from padir.decoding.refine_batch import DraftInputs, RefineOptions, encode, refine_drafts
from padir.decoding.refining_drafter import RefiningDrafter, RefiningMemory
from padir.decoding.search import Beam, Greedy, Sampling
from padir.decoding.shortlist import Shortlist
from padir.decoding.text import collapsed
from padir.decoding.translator import Translator
from padir.decoding.verified import VerifyOptions, _judge, write_verified
from padir.errors import PadirError
from padir.refinement.corruption import Mask, Uniform
from padir.refinement.scores import likely
from padir.refinement.strategies import EasyFirst, Padir
from padir.text.ids import EOS

SOURCES = rows_of([[pair] for pair in pairs([(4, 5), (6, 3), (3, 7), (7, 7)], length_token=False)], 8, 8)
LIMITS = jnp.array([12, 9, 16, 14])
LONG_LIMITS = jnp.array([32, 30, 28, 31])


NO_INPUTS: Any = None


@dataclasses.dataclass(frozen=True)
class Wild:
    """Proposes numbers that are no tokens, special ids and random tokens."""

    block: int = 5

    def begin(self, params, inputs, *, max_length, seed):
        return inputs.source_BS

    def propose(self, memory, rows):
        number_BK = rows.length_B[:, None] * 7919 + jnp.arange(self.block) * 104729 + memory[:, :1]
        return Proposal(jnp.where(number_BK % 3 == 0, number_BK, number_BK % 13 - 2))

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        return memory


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Proposes given tokens at every position: those of greedy search, right or wrong."""

    tokens: tuple[tuple[int, ...], ...]
    block: int

    def begin(self, params, inputs, *, max_length, seed):
        return jnp.array(self.tokens)

    def propose(self, memory, rows):
        padded = jnp.pad(memory, ((0, 0), (0, self.block)))
        return Proposal(jax.vmap(lambda row, n: jax.lax.dynamic_slice(row, (n,), (self.block,)))(padded, rows.length_B))

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        return memory


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Proposes tokens that it drew at each position from a distribution of its own, EOS and special ids among them."""

    block: int

    def begin(self, params, inputs, *, max_length, seed):
        logits_LV = 2.0 * jax.random.normal(jax.random.key(5), (max_length, IDS.num_embeddings - 1))
        drawn_BL = jax.random.categorical(jax.random.key(seed), logits_LV, shape=(len(inputs.source_BS), max_length))
        return drawn_BL, jnp.broadcast_to(jax.nn.softmax(logits_LV), (*drawn_BL.shape, logits_LV.shape[-1]))

    def propose(self, memory, rows):
        return Proposal(*(window(each, rows.length_B, self.block) for each in memory))

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        return memory


@pytest.fixture(scope="module")
def causal():
    model, params = tiny_model(causal=True)
    params["token_embedder"]["embedding"] = params["token_embedder"]["embedding"].at[EOS].multiply(0.9)
    return model, params


@pytest.fixture(scope="module")
def greedy(causal):
    model, params = causal
    return write_targets(model, params, SearchInputs(SOURCES.source_BS, LIMITS), search=Greedy(), max_length=16, seed=0)


def verified(
    causal,
    drafter,
    drafter_params=None,
    search=Greedy(),  # noqa: B008
    sources=SOURCES.source_BS,
    limits=LIMITS,
    seed=0,
    tolerance=0.0,
    max_length=16,
):  # noqa: B008
    model, params = causal
    return write_verified(
        model,
        params,
        SearchInputs(sources, limits),
        drafter_params,
        options=VerifyOptions(drafter, search, max_length, tolerance),
        seed=seed,
    )


@pytest.fixture(scope="module")
def refiner():
    model, params = tiny_model()
    return lambda **options: (RefiningDrafter(model, Padir(), Uniform(), **options), params)


@pytest.fixture(scope="module")
def ctc():
    model, params = tiny_model(length_head="ctc", decoder_layers=1)
    return lambda **options: (RefiningDrafter(model, Padir(), Uniform(), **options), params)


class TestGreedy:
    @pytest.mark.parametrize("drafter", [Jacobi(1), Jacobi(4), Copy(3), Copy(8), Wild()], ids=str)
    def test_is_plain_greedy_search(self, drafter, causal, greedy):
        rows, score_B, rounds_B, _ = verified(causal, drafter)
        plain, plain_score_BN, passes_B = greedy
        np.testing.assert_array_equal(rows.tokens_BL, plain.tokens_BNL[:, 0])
        np.testing.assert_array_equal(rows.length_B, plain.length_BN[:, 0])
        np.testing.assert_allclose(score_B, plain_score_BN[:, 0], rtol=1e-4)
        assert (np.asarray(rounds_B) <= np.asarray(passes_B)).all()

    @pytest.mark.parametrize(
        "options",
        [
            {"num_steps": 3, "block": 2},
            *(pytest.param(more, marks=pytest.mark.slow) for more in ({}, {"follow": "place"}, {"follow": "refine"})),
        ],
        ids=str,
    )
    def test_is_plain_greedy_search_with_a_refined_draft(self, options, refiner, causal, greedy):
        found = verified(causal, *refiner(**options))
        np.testing.assert_array_equal(found.rows.tokens_BL, greedy[0].tokens_BNL[:, 0])

    @pytest.mark.parametrize("block", [1, 3, 8, 20])
    def test_right_proposals_need_the_fewest_rounds(self, block, causal, greedy):
        rows = greedy[0]
        right = tuple(map(tuple, np.asarray(rows.tokens_BNL[:, 0]).tolist()))
        found = verified(causal, Fixed(right, block))
        np.testing.assert_array_equal(found.rows.tokens_BL, rows.tokens_BNL[:, 0])
        np.testing.assert_array_equal(found.rounds_B, -(-np.asarray(rows.length_BN[:, 0]) // (block + 1)))

    def test_a_wrong_proposal_costs_a_round_and_nothing_else(self, causal, greedy):
        plain = np.asarray(greedy[0].tokens_BNL[:, 0])
        wrong = plain.copy()
        wrong[:, 2] = np.where(plain[:, 2] == 7, 8, 7)
        found = verified(causal, Fixed(tuple(map(tuple, wrong.tolist())), 16))
        np.testing.assert_array_equal(found.rows.tokens_BL, plain)
        lengths = np.asarray(greedy[0].length_BN[:, 0])
        np.testing.assert_array_equal(found.rounds_B, np.where(lengths > 3, 2, 1))


class TestContract:
    """Holds every drafter to the Protocol `Drafter`."""

    @pytest.fixture(
        params=[*DRAFTERS, "token", "ctc", *(pytest.param(n, marks=pytest.mark.slow) for n in ("refine", "drawn"))]
    )
    def drafter(self, request, refiner, ctc):
        if request.param == "drawn":
            return refiner(block=3, follow="place", temperature=1.0)
        if request.param in DRAFTERS:
            return DRAFTERS[request.param](block=3), None
        if request.param == "ctc":
            return ctc(block=3)
        return refiner(block=3, follow=request.param)

    def test_shapes_and_protocol(self, drafter):
        drafter, params = drafter
        assert isinstance(drafter, Drafter) and drafter.block == 3
        memory = drafter.begin(params, SearchInputs(SOURCES.source_BS, LIMITS), max_length=16, seed=0)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(memory)} <= {4}
        rows = rows_with([[], [7], [7, 8, 9], [8] * 11], width=16)
        assert drafter.propose(memory, rows).tokens_BK.shape == (4, 3)
        learned = drafter.learn(params, memory, rows, jnp.full((4, 4), 7), jnp.array([0, 1, 3, 2]), seed=0)
        assert jax.tree.map(jnp.shape, learned) == jax.tree.map(jnp.shape, memory)

    @pytest.mark.parametrize(
        "search",
        [Greedy(), pytest.param(Sampling(temperature=2.0), marks=pytest.mark.slow)],
        ids=["greedy", "sampling"],
    )
    def test_rows_do_not_depend_on_their_batch(self, search, drafter, causal):
        """Nor on the widths of sources and targets, which are those of the longest sentence of a batch."""
        wide_BS = jnp.pad(SOURCES.source_BS, ((0, 0), (0, 8)))
        together = verified(causal, *drafter, search=search, sources=wide_BS, limits=LONG_LIMITS, max_length=40)
        assert (together.rows.length_B > 16).any()
        for b in range(4):
            source_BS, limit_B = SOURCES.source_BS[b : b + 1], LONG_LIMITS[b : b + 1]
            alone = verified(causal, *drafter, search=search, sources=source_BS, limits=limit_B, max_length=32)
            np.testing.assert_array_equal(alone.rows.tokens_BL[0], together.rows.tokens_BL[b, :32])
            assert int(alone.rounds_B[0]) == int(together.rounds_B[b])


def test_a_tolerance_accepts_tokens_that_are_nearly_the_best(causal, greedy):
    """Whatever token is proposed for the first position is accepted if, and only if, it is within the tolerance."""
    model, params = causal
    bound = model.bind({"params": params})
    encoded = bound.encode(SOURCES.source_BS, (SOURCES.source_BS > 0).astype(int))
    one_B1 = jnp.ones((4, 1), int)
    logits_BV = bound.teacher_force(one_B1 * 7, one_B1, bound.cross_kv(encoded.memory_BSD), encoded.segment_BS)[:, 0]
    pieces = np.arange(IDS.first_regular, IDS.end_regular)
    below_BV = np.asarray(logits_BV[:, pieces].max(-1, keepdims=True) - logits_BV[:, pieces])
    second_B = np.argsort(below_BV, axis=1)[:, 1]
    gap_B = np.take_along_axis(below_BV, second_B[:, None], axis=1)[:, 0]
    tolerance = float(np.sort(gap_B)[1:3].mean())  # two of the four are near enough
    drafter = Fixed(tuple((int(token),) * 16 for token in pieces[second_B]), 1)
    first_B = verified(causal, drafter, tolerance=tolerance).rows.tokens_BL[:, 0]
    expected_B = np.where(gap_B <= tolerance, pieces[second_B], greedy[0].tokens_BNL[:, 0, 0])
    np.testing.assert_array_equal(first_B, expected_B)


def test_a_model_that_never_ends_a_sentence_is_stopped(causal):
    """Logits of -NaN, of which none is the greatest: top_k takes id 0, for ever."""
    model, params = causal
    found = verified((model, jax.tree.map(lambda leaf: leaf * -jnp.nan, params)), Wild(2))
    assert found.rounds_B.tolist() == [16] * 4 and not found.rows.done_B.any()
    np.testing.assert_array_equal(found.score_B, [-np.inf] * 4)


def drafted_samples():
    """Every way to sample with every drafter; all but one drafter for each way are slow tests."""
    ways = Sampling(), Sampling(temperature=0.7, top_k=3), Sampling(top_p=0.8)
    drafters = "greedy", Jacobi(2), Wild(2), Drawn(2), "refiner"
    for (i, way), (j, drafter) in itertools.product(enumerate(ways), enumerate(drafters)):
        yield pytest.param(way, drafter, marks=pytest.mark.slow if i != j % 3 else (), id=f"{way}-{drafter}")


@pytest.mark.parametrize(("search", "drafter"), [*drafted_samples()])
def test_samples_have_the_models_distribution(search, drafter, causal, greedy, refiner):
    """The first two tokens of 3,000 samples of a sentence against their exact probabilities."""
    model, params = causal
    source_BS, limit_B = SOURCES.source_BS[:1], LIMITS[:1]
    if drafter == "greedy":
        drafter = Fixed((tuple(np.asarray(greedy[0].tokens_BNL[0, 0]).tolist()),), 3)
    drafter_params = None
    if drafter == "refiner":
        drafter, drafter_params = refiner(num_steps=2, block=2, follow="place", temperature=0.9)
    sample = jax.vmap(
        lambda seed: verified(causal, drafter, drafter_params, search, source_BS, limit_B, seed).rows.tokens_BL[0, :2]
    )
    found, count = np.unique(np.asarray(sample(jnp.arange(3_000))), axis=0, return_counts=True)
    share = {tuple(pair): n / 3_000 for pair, n in zip(found.tolist(), count.tolist(), strict=True)}

    tokens = np.arange(IDS.num_embeddings)
    prefixes = jnp.stack([jnp.array(tokens), jnp.full(tokens.shape, 7)], axis=1)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, jnp.ones_like(source_BS) * (source_BS > 0))
    logits_VLV = bound.teacher_force(
        prefixes, jnp.ones_like(prefixes), bound.cross_kv(encoded.memory_BSD), encoded.segment_BS
    )
    allowed_V = ~np.isin(tokens, [i for i in IDS.special if i != EOS])
    first_V = jnp.where(allowed_V & (tokens != EOS), logits_VLV[0, 0], -jnp.inf)
    second_VV = jnp.where(allowed_V, logits_VLV[:, 1], -jnp.inf)
    drawn = [jax.nn.softmax(likely(x / search.temperature, search.top_k, search.top_p)) for x in (first_V, second_VV)]
    exact_VV = np.asarray(drawn[0][:, None] * drawn[1])
    assert set(share) <= {tuple(pair) for pair in np.argwhere(exact_VV > 0).tolist()}
    for pair in np.argwhere(exact_VV > 0).tolist():
        p = exact_VV[tuple(pair)]
        assert abs(share.get(tuple(pair), 0) - p) < 5 * (p * (1 - p) / 3_000) ** 0.5 + 1e-3, pair


@pytest.mark.parametrize("proposed", [None, 0, 99], ids=["drawn", "token", "no-token"])
def test_a_judged_token_has_the_models_distribution(proposed):
    """20,000 judgements of one position, whose proposal was drawn from another distribution or is always the same."""
    count, search = 20_000, Sampling(temperature=1.5, top_p=0.95)
    logits_2V, other_V = (1.5 * jax.random.normal(jax.random.key(i), shape) for i, shape in ((0, (2, 8)), (1, (8,))))
    drawn_B1 = jax.random.categorical(jax.random.key(2), other_V, shape=(count, 1))
    prob_B1V = jnp.broadcast_to(jax.nn.softmax(other_V), (count, 1, 8))
    proposal = Proposal(drawn_B1, prob_B1V) if proposed is None else Proposal(jnp.full((count, 1), proposed))
    logits_B2V = jnp.broadcast_to(logits_2V, (count, 2, 8))
    choice_BJ, agrees_B1 = _judge(jax.random.split(jax.random.key(3), count), logits_B2V, proposal, search, 0.0)
    for j in range(2):
        p_V = np.asarray(jax.nn.softmax(likely(logits_2V[j] / search.temperature, 0, search.top_p)))
        share_V = np.bincount(choice_BJ[:, j], minlength=8) / count
        assert (np.abs(share_V - p_V) <= 5 * np.sqrt(p_V * (1 - p_V) / count)).all()
    assert 0.1 < agrees_B1.mean() < 0.9 if proposed is None else agrees_B1.any() == (proposed == 0)


def test_what_the_model_itself_would_draw_is_always_accepted():
    logits_BJV = 2.0 * jax.random.normal(jax.random.key(0), (50, 4, IDS.num_embeddings))
    prob_BKV = jax.nn.softmax(logits_BJV[:, :-1] / 0.7)
    drawn_BK = jax.random.categorical(jax.random.key(1), logits_BJV[:, :-1] / 0.7)
    keys = jax.random.split(jax.random.key(2), 50)
    for prob, all_agree in ((prob_BKV, True), (None, False)):
        choice_BJ, agrees_BK = _judge(keys, logits_BJV, Proposal(drawn_BK, prob), Sampling(temperature=0.7), 0.0)
        assert bool(agrees_BK.all()) == all_agree
        assert (choice_BJ[:, :-1] == drawn_BK)[agrees_BK].all()


def rows_with(tokens, width=12):
    """Rows in the middle of verification that have these tokens."""
    return Verified(
        tokens_BL=jnp.array([[*row, *[0] * (width - len(row))] for row in tokens]),
        length_B=jnp.array([len(row) for row in tokens]),
        log_prob_B=jnp.zeros(len(tokens)),
        done_B=jnp.zeros(len(tokens), bool),
    )


class TestProposals:
    def test_of_jacobi_are_the_choices_behind_the_accepted_ones(self):
        drafter = Jacobi(3)
        memory = drafter.begin(None, SearchInputs(SOURCES.source_BS[:1], LIMITS[:1]), max_length=12, seed=0)
        rows = rows_with([[7, 8, 5, 6]])
        memory = drafter.learn(None, memory, rows, jnp.array([[5, 6, 9, 10]]), jnp.array([2]), seed=0)
        assert drafter.propose(memory, rows_with([[7, 8, 5, 6]])).tokens_BK.tolist() == [[9, 10, 0]]

    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ([], [5, 6, 7]),  # the first tokens
            ([9, 6], [7, 5, 6]),  # behind the first 6, the nearer one
            ([9, 9, 9, 5, 6], [8, 1, 0]),  # behind the second 5 6, the nearer one
            ([9, 9, 9, 9, 9, 9, 5], [6, 8, 1]),
            ([3, 4], [7, 5, 6]),  # neither is in the source: the same place
        ],
    )
    def test_of_copy_follow_the_last_tokens(self, written, expected):
        source_BS = jnp.array([[5, 6, 7, 5, 6, 8, 1, 0]])
        drafter = Copy(3)
        memory = drafter.begin(None, SearchInputs(source_BS, LIMITS[:1]), max_length=12, seed=0)
        assert drafter.propose(memory, rows_with([written])).tokens_BK.tolist() == [expected]

    @pytest.mark.parametrize(
        ("choices", "accepted", "expected"),
        [
            ([7, 8, 9, 10], 4, [3, 1, 0]),  # all agreed: on behind the draft's fourth token
            ([7, 9, 0, 0], 2, [10, 3, 1]),  # the model leaves 8 out
            ([6, 7, 0, 0], 2, [8, 9, 10]),  # the model puts a token in front
            ([7, 5, 0, 0], 2, [9, 10, 3]),  # another word, no token of the draft: on at the same place
        ],
    )
    def test_of_a_draft_go_on_behind_the_models_token(self, choices, accepted, expected, refiner):
        drafter, _ = refiner(block=3)
        memory = RefiningMemory(
            jnp.array([[7, 8, 9, 10, 3, 1, 0, 0, 0, 0, 0, 0]]),
            jnp.array([0]),
            jnp.array([12]),
            jnp.array([0]),
            NO_INPUTS,
        )
        rows = rows_with([choices[:accepted]])
        memory = drafter.learn(None, memory, rows, jnp.array([choices]), jnp.array([accepted]), seed=0)
        assert drafter.propose(memory, rows_with([choices[:accepted]])).tokens_BK.tolist() == [expected]

    @pytest.mark.parametrize("decontextualised", [False, True])
    def test_a_draft_is_rewritten_behind_the_accepted_tokens(self, decontextualised):
        """With `follow="refine"` the accepted tokens stay, and the rest depends on them."""
        model, params = tiny_model(decontextualised=decontextualised)
        how = (EasyFirst(), Mask()) if decontextualised else (Padir(), Uniform())
        drafter = RefiningDrafter(model, *how, follow="refine")
        memory = drafter.begin(params, SearchInputs(SOURCES.source_BS, LIMITS), max_length=16, seed=0)
        rests = []
        for prefix in ([9, 5], [12, 31]):
            rows, accepted_B = rows_with([prefix] * 4, width=16), jnp.array([2, 2, 2, 2])
            learned = drafter.learn(params, memory, rows, jnp.full((4, 9), 5), accepted_B, seed=0)
            draft_BL = np.asarray(learned.draft_BL)
            assert (draft_BL[:, :2] == prefix).all() and ((draft_BL == EOS).sum(-1) == 1).all()
            assert learned.shift_B.tolist() == [0, 0, 0, 0]
            assert (learned.passes_B > memory.passes_B).all() and (memory.passes_B == 1).all()
            rests.append(draft_BL[:, 2:])
        assert (rests[0] != rests[1]).any()

    def test_of_a_ctc_model_are_its_collapsed_canvas(self, ctc):
        drafter, params = ctc(block=12)
        inputs = SearchInputs(SOURCES.source_BS, jnp.array([32] * 4))
        draft_BL = drafter.begin(params, inputs, max_length=32, seed=0).draft_BL
        memory = encode(drafter.model, params, SOURCES.source_BS)
        length_BN = 2 * (SOURCES.source_BS > 0).sum(-1, keepdims=True)
        drafts = DraftInputs(memory[1], memory[0].segment_BS, SOURCES.source_BS, length_BN, 0 * length_BN)
        options = RefineOptions(32, drafter.strategy, drafter.corruption)
        refined = refine_drafts(drafter.model, params, drafts, options=options, num_steps=1, seed=0)
        for b, draft_L in enumerate(np.asarray(draft_BL)):
            tokens = collapsed(
                np.asarray(refined.tokens_RL[b]), np.asarray(refined.free_RL[b]), drafter.model.ids.blank
            )
            assert draft_L.tolist() == [*tokens, EOS, *[0] * (31 - len(tokens))]
        assert (draft_BL > 0).sum() < length_BN.sum()  # something was collapsed

    def test_a_ctc_model_cannot_refine_behind_given_tokens(self, ctc):
        with pytest.raises(PadirError, match="CTC model cannot refine behind given tokens.*follow=token"):
            ctc(follow="refine")

    def test_a_draft_that_is_drawn_stays_in_its_places(self, refiner, ctc):
        for follow in ("token", "refine"):
            with pytest.raises(PadirError, match=f'follow must be "place" beside a temperature, got .*{follow}'):
                refiner(temperature=1.0, follow=follow)
        with pytest.raises(PadirError, match="a CTC model's draft cannot be drawn"):
            ctc(temperature=1.0, follow="place")

    def test_of_a_model_with_the_same_encoder_take_its_output(self, causal, ctc, greedy):
        """The drafter's own encoder is not read then: here it is not a number."""
        model, params = causal
        drafter, own = ctc(block=3)
        shared = {**own, "encoder": params["encoder"], "token_embedder": params["token_embedder"]}
        assert encoder_sum(model.config, params) == encoder_sum(drafter.model.config, shared)
        assert encoder_sum(model.config, params) != encoder_sum(drafter.model.config, own)
        assert encoder_sum(dataclasses.replace(model.config, heads=4), params) != encoder_sum(model.config, params)
        unread = {**shared, "encoder": jax.tree.map(lambda leaf: leaf * jnp.nan, params["encoder"])}
        options = VerifyOptions(drafter, Greedy(), 16)
        inputs = SearchInputs(SOURCES.source_BS, LIMITS)
        twice = write_verified(model, params, inputs, shared, options=options, seed=0)
        once = write_verified(
            model, params, inputs, unread, options=dataclasses.replace(options, one_encoder=True), seed=0
        )
        for found in (once, twice):
            np.testing.assert_array_equal(found.rows.tokens_BL, greedy[0].tokens_BNL[:, 0])
        np.testing.assert_array_equal(once.rounds_B, twice.rounds_B)

    def test_of_a_refiner_begin_with_its_own_translation(self, refiner):
        drafter, params = refiner(num_steps=2, block=12)
        draft_BL = drafter.begin(params, SearchInputs(SOURCES.source_BS, LIMITS), max_length=16, seed=0).draft_BL
        ends = (np.asarray(draft_BL) == EOS).sum(-1)
        assert ends.tolist() == [1, 1, 1, 1]
        assert not ((draft_BL[:, 1:] == draft_BL[:, :-1]) & (draft_BL[:, 1:] > 0)).any()  # no stutter

    def test_of_a_refiner_have_the_longest_length_of_a_class(self):
        model, params = tiny_model(length_unit=4)
        drafter = RefiningDrafter(model, Padir(), Mask(1.0), num_steps=1, block=4)
        memory = drafter.begin(params, SearchInputs(SOURCES.source_BS, LONG_LIMITS), max_length=32, seed=0)
        assert (memory.inputs.length_BN % 4 == 0).all() and (memory.inputs.length_BN >= 4).all()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    sizes = {"causal": {"causal": True}, "refining": {}, "ctc": {"length_head": "ctc"}}
    return tuple(random_model_dir(folder / name, **size) for name, size in sizes.items())


class TestTranslator:
    TEXTS = ("eins", "", "zwei drei vier", "acht acht")

    def test_a_draft_changes_no_word(self, folders):
        causal, refining, ctc = folders
        translator = Translator.load(causal)
        plain = translator.translate(self.TEXTS, search=Greedy())
        passes = {
            "jacobi": {0},
            "copy:block=2": {0},
            f"{refining}:num_steps=2,block=3": {1, 2},
            f"{ctc}:block=3": {1},
        }
        for draft, some in passes.items():
            found = translator.translate(self.TEXTS, draft=load_draft(draft))
            assert {each.draft_passes for each in found if each.passes} <= some
            assert [each.text for each in found] == [each.text for each in plain]
            assert found[1] == plain[1] and all(
                mine.passes <= its.passes for mine, its in zip(found, plain, strict=True)
            )

    @pytest.mark.parametrize("same", [True, False])
    def test_a_model_with_the_same_encoder_reads_the_sources_once(self, same, folders, monkeypatch):
        translator, draft = Translator.load(folders[0]), load_draft(str(folders[2]))
        params = translator.params if same else {}
        shared = {name: params.get(name, draft.params[name]) for name in draft.params if name != "decoder"}
        draft = dataclasses.replace(draft, params={**draft.params, **shared})
        told = []

        def write(*args, options, **others):
            told.append(options.one_encoder)
            return write_verified(*args, options=options, **others)

        monkeypatch.setattr("padir.decoding.pipeline.write_verified", write)
        (found,) = translator.translate(self.TEXTS[:1], draft=draft)
        assert told == [same]
        assert found.text == translator.translate(self.TEXTS[:1], search=Greedy())[0].text

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_draft_and_a_translator_of_one_model_have_one_encoder(self, dtype, tmp_path):
        folder = random_model_dir(tmp_path / "model", dtype=dtype)
        assert Translator.load(folder).loaded.encoder == load_draft(str(folder)).encoder != ""

    def test_what_is_refused(self, folders, tmp_path):
        causal, refining, _ = folders
        translator = Translator.load(causal)
        draft = load_draft("jacobi")
        with pytest.raises(
            PadirError,
            match="the search beside a draft, as of the mode verify, must be greedy.*, got Beam.*take a beam of 1",
        ):
            translator.translate(self.TEXTS, draft=draft, search=Beam(3))
        with pytest.raises(PadirError, match="greedy, or one sample, got Sampling.*take one sample"):
            translator.translate(self.TEXTS, draft=draft, search=Sampling(size=2))
        with pytest.raises(PadirError, match="draft applies only to autoregressive models"):
            Translator.load(refining).translate(self.TEXTS, draft=draft)
        other = dataclasses.replace(load_draft(str(refining)), vocabulary="a" * 64)
        with pytest.raises(PadirError, match=r"another vocabulary \(sha256 aaaaaaaa\)"):
            translator.translate(self.TEXTS, draft=other)
        with pytest.raises(PadirError, match="has no hyperparameter 'size': it has block: int = 3, tolerance: float"):
            load_draft("jacobi:size=3")
        with pytest.raises(PadirError, match="has no hyperparameter 'model'"):
            load_draft(f"{refining}:model=3")
        with pytest.raises(PadirError, match="block='four' is of the wrong type for copy"):
            load_draft("copy:block=four")
        with pytest.raises(PadirError, match="block must be at most 24, the model's limit of tokens, got 33"):
            translator.translate(self.TEXTS, draft=load_draft("jacobi:block=33"))
        with pytest.raises(PadirError, match="leave the tolerance out, or the sampling"):
            translator.translate(self.TEXTS, draft=load_draft("copy:tolerance=1"), search=Sampling())
        with pytest.raises(PadirError, match="tolerance must be in .*got -1"):
            load_draft("copy:tolerance=-1")
        with pytest.raises(PadirError, match="block must be at least 1"):
            load_draft("copy:block=0")
        with pytest.raises(PadirError, match="holds no model that refines drafts of predicted lengths"):
            load_draft(str(causal))
        with pytest.raises(
            PadirError, match="no draft is called 'jaccobi'.*give jacobi, copy or a padir model's directory"
        ):
            load_draft("jaccobi")

    def test_neither_a_shortlist_nor_several_devices_go_with_a_draft(self, folders, monkeypatch):
        translator = Translator.load(folders[0])
        draft = load_draft("jacobi")
        shortlist = Shortlist("", np.zeros((9, 4), np.int32), np.arange(3, 9), 5)
        decoding = Decoding(shortlist=shortlist).changed(draft=draft)
        with pytest.raises(PadirError, match="cannot be verified with a shortlist: leave one of them out"):
            resolve(decoding, translator.card.config, None, None)
        monkeypatch.setattr(LoadedModel, "mesh", "two devices")
        with pytest.raises(PadirError, match="verified on one device: leave the draft or the sharding out"):
            translator.resolved(Decoding().changed(draft=draft))

    def test_a_beam_of_one_is_greedy_search_with_its_own_score(self, folders):
        translator = Translator.load(folders[0])
        for one, plain in zip(
            translator.translate(self.TEXTS, draft=load_draft("jacobi"), search=Beam(1)),
            translator.translate(self.TEXTS, search=Beam(1)),
            strict=True,
        ):
            assert (one.text, one.score) == (plain.text, pytest.approx(plain.score, rel=1e-4))

    def test_a_draft_replaces_a_beam_that_the_same_call_does_not_name(self):
        draft = load_draft("jacobi")
        assert Decoding().changed(draft=draft).search == Greedy()
        assert Decoding(search=Beam(3)).changed(draft=draft).search == Greedy()  # a model's own, of its card
        assert Decoding(search=Sampling()).changed(draft=draft).search == Sampling()
        assert Decoding().changed(draft=draft, search=Beam(3)).search == Beam(3)
        assert Decoding().changed(draft=draft, size=1).search == Beam(1)
        assert Decoding().changed(draft=draft, alpha=1.0).search == Beam(alpha=1.0)
        assert Decoding().changed(draft=None).search == Beam()
