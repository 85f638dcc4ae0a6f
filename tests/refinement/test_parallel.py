"""Strategies that write together what is guaranteed to fit: the rule by hand, its guarantee, and that it is tight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bounds import Frechet
from numpy.testing import assert_array_equal
from support.fakes import IDS, canvas, conditionals, stepped

from padir.refinement.scores import Output, forbid
from padir.refinement.strategies import Factor

EOS, MASK = IDS.eos, IDS.mask


def doubting(*doubts):
    """An output with the token 20 + i at position i, whose probability is 1 - doubts[i]; 50 has the doubt."""
    logits_LV = np.full((len(doubts) + 1, IDS.vocab_size), -np.inf, np.float32)
    for i, doubt in enumerate(doubts):
        logits_LV[i, [20 + i, 30]] = np.log([1 - doubt, doubt])
    logits_LV[-1, EOS] = 0.0
    return Output(jnp.asarray(logits_LV)[None])


def written(strategy, out, free, step=0, num_steps=9):
    after, _ = stepped(strategy, canvas([MASK] * free), out, step=step, num_steps=num_steps)
    assert_array_equal(after.masked_BL, after.tokens_BL == MASK)
    return after.tokens_BL[0, :-1].tolist(), bool(after.done_B[0])


class TestRule:
    # In order of confidence: doubts 0.05, 0.1, 0.2, 0.25. Frechet's sums are 0.1, 0.25, 0.55, 0.85; factor's 0.1, 0.3,
    # 0.8, 1.25.
    OUT = doubting(0.25, 0.1, 0.05, 0.2)

    @pytest.mark.parametrize(
        ("strategy", "expected"),
        [
            (Frechet(), [20, 21, 22, 23]),
            (Frechet(0.84), [MASK, 21, 22, 23]),
            (Frechet(0.54), [MASK, 21, 22, MASK]),
            (Frechet(0.01), [MASK, MASK, 22, MASK]),
            (Factor(), [MASK, 21, 22, 23]),
            (Factor(1.26), [20, 21, 22, 23]),
            (Factor(0.79), [MASK, 21, 22, MASK]),
            (Factor(0.29), [MASK, MASK, 22, MASK]),
        ],
        ids=str,
    )
    def test_writes_the_largest_set_below_the_bound(self, strategy, expected):
        assert written(strategy, self.OUT, 4) == (expected, MASK not in expected)

    def test_equal_doubts_make_the_two_rules_one(self):
        for doubts in ([0.2] * 3, [0.2] * 4, [0.15] * 5, [0.3] * 3):
            out = doubting(*doubts)
            assert written(Frechet(), out, len(doubts)) == written(Factor(), out, len(doubts))


@functools.partial(jax.jit, static_argnums=1)
def first_step(joint_VVV, strategy):
    start = canvas([MASK] * 3)
    out = Output(forbid(conditionals(joint_VVV)(start), IDS.special))
    return stepped(strategy, start, out, num_steps=9)[0].tokens_BL[0, :3]


def step_on(joint_VVV, strategy=Frechet()):  # noqa: B008
    """Which of three positions the strategy writes first, on the exact marginals, and the marginals' argmax."""
    marginals = [joint_VVV.sum(axis=tuple({0, 1, 2} - {i})) for i in range(3)]
    return np.asarray(first_step(joint_VVV, strategy)) != MASK, tuple(int(m.argmax()) for m in marginals)


def best_of(joint_VVV, where):
    """The most likely combination of the positions in `where`, all others summed out."""
    kept = joint_VVV.sum(axis=tuple(i for i in range(3) if not where[i]))
    return tuple(int(k) for k in np.unravel_index(kept.argmax(), kept.shape))


class TestGuarantee:
    def test_what_is_written_together_is_the_most_likely_combination(self):
        """On random joints near one state, near the edge of the rule; a rule with a bound of 1.5 fails on some."""
        rng, several, wrong = np.random.RandomState(0), 0, 0
        for _ in range(150):
            joint = rng.dirichlet(np.full(27, 0.05)).reshape(3, 3, 3)
            joint = 0.55 * joint
            joint[0, 0, 0] += 0.45
            where, argmax = step_on(joint)
            several += where.sum() > 1
            assert best_of(joint, where) == tuple(a for a, w in zip(argmax, where, strict=True) if w)
            where, argmax = step_on(joint, Frechet(1.9))
            wrong += best_of(joint, where) != tuple(a for a, w in zip(argmax, where, strict=True) if w)
        assert several > 30 and wrong > 5

    @pytest.mark.parametrize("excess", [-0.02, 0.02])
    def test_is_tight(self, excess):
        """Exactly one position differs: the rule must accept up to its edge, and is wrong just beyond."""
        doubts = np.array([0.1, 0.2, (0.7 + excess) / 2])  # 0.1 + 0.2 + 2 * 0.35 is 1
        joint = np.zeros((3, 3, 3))
        joint[0, 0, 0] = 1 - doubts.sum()
        for i, state in enumerate([(1, 0, 0), (0, 1, 0), (0, 0, 1)]):
            joint[state] = doubts[i]
        where, argmax = step_on(joint)
        assert where.tolist() == [True, True, excess < 0] and argmax == (0, 0, 0)
        assert (best_of(joint, [True] * 3) == argmax) == (excess < 0)


def test_factor_never_writes_more_than_frechet():
    rng = np.random.RandomState(1)
    fewer = 0
    for doubts in rng.uniform(0.0, 0.4, size=(40, 5)):
        one, other = (np.array(written(cls(), doubting(*doubts), 5)[0]) != MASK for cls in (Factor, Frechet))
        assert not (one & ~other).any()
        fewer += (one != other).any()
    assert fewer > 5
