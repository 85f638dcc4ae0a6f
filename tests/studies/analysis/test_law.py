"""Exact laws of outputs against frequencies of `refine` with keys, and against sums by hand."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import keys
from support.refusals import refused

from padir.refinement import Mask, Padir, Uniform, draft, parse_strategy, refine, restrict_visibility
from padir.refinement.protocols import Memoryless
from padir.refinement.segments import Draws, position_keys, uniform_draws
from padir.refinement.stop import Never
from padir.studies.analysis import law as laws
from padir.studies.analysis.law import Choices, law
from padir.studies.analysis.truth import FIRST, ExactDecoder, Joint

TWO = Joint(np.array([[7, 8], [8, 7]]), np.array([0.5, 0.5]))
FOUR = Joint(np.array([[7, 7, 8], [8, 7, 7], [7, 8, 7], [8, 8, 8]]), np.array([0.4, 0.3, 0.2, 0.1]))
SEVERAL = Joint(np.array([[8, 7, 7], [7, 8, 8]]), np.array([0.7, 0.3]))
DRAWS = 8_000

STRATEGIES = [  # one that makes each kind of draw, or whose state has something of its own
    "padir:temperature=1.0",
    "padir:temperature=0.7,top_p=0.8",
    "mask_predict",
    "remdm:sigma=0.3",
    "remdm:sigma=0.3,temperature=0.0",
    "p2:judges=drawn,temperature=1.0",
    "p2:judges=random,eta=0.0",
    "renoise:temperature=1.0",
    "renoise:temperature=1.0,final_temperature=0.5,stop_entropy=0.3",
    "sundae:temperature=1.0",
    "block_gibbs",
    "independent_parallel",
    "easy_first",
]


def oracle_of(*joints):
    return ExactDecoder.of(joints, 2)


def sampler(strategy, oracle, masked):
    """T -> how often each output came in a sample, by target, and the mean number of passes; one program for all T."""
    groups, _, length = oracle.answer_GKL.shape
    rows, corruption = groups * DRAWS, Mask(1.0) if masked else Uniform(1.0)
    canvas = draft(keys(rows), jnp.full(rows, length + 1), length + 1, corruption, oracle.ids)
    if "decontextualised" in getattr(strategy, "needs", ()):
        canvas = restrict_visibility(canvas, canvas.editable_BL)
    decoder = oracle.decoder_of(strategy, masked)
    run = jax.jit(lambda steps: refine(keys(rows, seed=1), canvas, decoder, strategy, num_steps=steps))

    def sample(steps):
        found = run(steps)
        tokens_GRL = np.asarray(found.tokens_BL)[:, :length].reshape(groups, DRAWS, length)
        counts = [collections.Counter(code_R.tolist()) for code_R in codes(tokens_GRL)]
        return counts, np.asarray(found.passes_B).reshape(groups, DRAWS).mean(-1)

    return sample


def codes(tokens_XL):
    return ((tokens_XL - FIRST) << np.arange(tokens_XL.shape[-1])).sum(-1)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_law_is_that_of_samples(name, masked):
    strategy = parse_strategy(name)
    if not masked and {"mask", "decontextualised"} & getattr(strategy, "needs", frozenset()):
        return
    oracle = oracle_of(FOUR, SEVERAL)
    sample = sampler(strategy, oracle, masked)
    for steps in (1, 2, 4):
        exact = law(strategy, oracle, steps, masked=masked)
        samples, passes_G = sample(steps)
        assert exact.passes_G == pytest.approx(passes_G, abs=0.05)
        for target, counts in enumerate(samples):
            mine = exact.target_K == target
            assert exact.prob_K[mine].sum() == pytest.approx(1, abs=1e-5)
            expected = dict(zip(codes(exact.tokens_KL[mine]).tolist(), DRAWS * exact.prob_K[mine], strict=True))
            assert counts.keys() <= expected.keys()
            statistic = sum((counts[code] - count) ** 2 / count for code, count in expected.items() if count > 1e-6)
            assert statistic < 32  # chi-squared, at most 7 degrees of freedom: p = 4e-5


def test_states_that_differ_in_what_is_not_read_are_one():
    """Draws at temperature 1 read no score: after each pass there are at most as many states as sentences."""
    found = {}
    for name in ("padir:temperature=1.0", "mask_predict"):
        chain = laws._StrategyChain(parse_strategy(name), oracle_of(FOUR), True)
        _, leaves = chain.begun()
        state = chain.tree.unflatten([jnp.array(leaf) for leaf in leaves])
        paths = (path[-1] for path, _ in jax.tree_util.tree_flatten_with_path(state)[0])
        found[name] = {path.name for path, used in zip(paths, chain.matter, strict=True) if used}
    assert found["padir:temperature=1.0"] == {"tokens_BL", "done_BL", "editable_BL", "segment_BL"}
    assert {"tokens_BL", "score_BL", "written_BL", "done_BL"} <= found["mask_predict"]


def test_too_many_states_are_no_law(monkeypatch):
    monkeypatch.setattr(laws, "MOST", 7)
    assert law(parse_strategy("padir:temperature=1.0"), oracle_of(FOUR), 1, masked=True) is None
    assert law(parse_strategy("padir:temperature=1.0"), oracle_of(TWO), 1, masked=True) is not None


def test_many_states_go_through_small_programs(monkeypatch):
    strategy, oracle = parse_strategy("padir:temperature=1.0"), oracle_of(FOUR, SEVERAL)
    whole = law(strategy, oracle, 3, masked=False)
    monkeypatch.setattr(laws, "_ROWS", (3, 5))
    parts = law(strategy, oracle, 3, masked=False)
    assert np.array_equal(whole.tokens_KL, parts.tokens_KL) and np.allclose(whole.prob_K, parts.prob_K, atol=1e-7)


class TestChoices:
    WHERE = jnp.array([[True, False, True, True]])

    def all_of(self, make):
        """(result, probability) of every choice of a function that draws once."""
        first = Choices(jnp.zeros((1, 0), int), range(3, 6))
        make(first)
        assert isinstance(first, Draws) and first.probability_B.tolist() == [1]
        found = []
        for number in range(int(first.counts[0][0])):
            choices = Choices(jnp.array([[number]]), range(3, 6))
            result = np.asarray(make(choices))[0].tolist()
            found.append((tuple(result), float(choices.probability_B[0])))
        assert sum(probability for _, probability in found) == pytest.approx(1)
        assert len({result for result, _ in found}) == len(found)
        return dict(found)

    def test_tokens(self):
        logits_BLV = jnp.log(jnp.array([[[0.0] * 3 + [0.5, 0.3, 0.2]] * 4]))
        found = self.all_of(lambda choices: choices.tokens(logits_BLV, 1.0, self.WHERE)[:, jnp.array([0, 2, 3])])
        assert len(found) == 27 and found[3, 4, 5] == pytest.approx(0.5 * 0.3 * 0.2)
        sharp = self.all_of(lambda choices: choices.tokens(logits_BLV, 0.5, self.WHERE)[:, jnp.array([0, 2, 3])])
        assert sharp[3, 3, 3] == pytest.approx((0.25 / 0.38) ** 3)

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
    def test_subsets(self, count):
        found = self.all_of(lambda choices: choices.subset(self.WHERE, count))
        assert all(sum(each) == min(count, 3) and not each[1] for each in found)
        assert [*found.values()] == pytest.approx([1 / len(found)] * len(found))
        assert len(found) == [1, 3, 3, 1][min(count, 3)]

    def test_shares(self):
        rate_BL = jnp.array([[0.25, 0.5, 1.0, 0.0]])
        found = self.all_of(lambda choices: choices.share(self.WHERE, rate_BL))
        assert found == {(True, False, True, False): 0.25, (False, False, True, False): 0.75}

    def test_pieces(self):
        ids = oracle_of(TWO).ids
        found = self.all_of(lambda choices: choices.pieces(self.WHERE, ids)[:, jnp.array([0, 2, 3])])
        assert len(found) == 8 and {*found.values()} == {0.125}


class KeysOfItsOwn(Memoryless):
    stop = Never()

    def step(self, key_B, canvas, output, memory, *, step, num_steps):
        uniform_draws(position_keys(key_B, canvas.segment_BL, 0))
        return Padir().step(key_B, canvas, output, Padir().init(key_B, canvas), step=step, num_steps=num_steps)


def test_a_strategy_with_keys_of_its_own_is_refused():
    with refused("cannot be enumerated choose_share"):
        law(KeysOfItsOwn(), oracle_of(TWO), 2, masked=True)
