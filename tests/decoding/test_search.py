"""Searches on decoders whose every probability is known: brute force, a plain beam search, frequencies of samples."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import keys

from padir.decoding.autoregressive import generate
from padir.decoding.search import SEARCHES, Beam, Hypotheses, Sampling, Search
from padir.text.ids import EOS, Ids

IDS = Ids(vocab_size=9, num_sentinels=3, first_regular=3)  # what can be written: 3, 4, 5 and EOS
REGULAR = (3, 4, 5)


def by_table(tokens_BNL, slot_BNL, position, table):
    """Logits that depend on the sentence, the last token and the sum of all tokens before the position."""
    last_BN = jnp.where(position == 0, 0, tokens_BNL[:, :, position - 1])
    return table[jnp.arange(len(table))[:, None], last_BN, tokens_BNL.sum(-1) % 11], table


def decoder(batch, seed=0):
    """The table of `by_table`, and a function that gives its log-probabilities of a next token as plain numbers."""
    table = np.random.RandomState(seed).normal(scale=1.5, size=(batch, 9, 11, 9)).astype(np.float32)

    def log_probs(b, prefix):
        logits = np.asarray(table[b, prefix[-1] if prefix else 0, sum(prefix) % 11], np.float64)
        return logits - np.log(np.exp(logits).sum())

    return jnp.asarray(table), log_probs


def run(search, table, limits, max_length=None, key_B=None, next_fn=by_table):
    key_B = keys(len(limits)) if key_B is None else key_B
    return written(search, next_fn, max_length or max(limits), key_B, table, jnp.array(limits))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def written(search, next_fn, max_length, key_B, table, limit_B):
    """One program for all tables, limits and keys of a shape."""
    return generate(key_B, next_fn, table, limit_B, search, max_length=max_length, ids=IDS)


def outcomes(search, rows):
    """For each sentence its finished (score, tokens), best first."""
    score_BN = np.where(rows.done_BN, search.score(rows.log_prob_BN, rows.length_BN), -np.inf)
    found = []
    for row in zip(score_BN, *map(np.asarray, (rows.tokens_BNL, rows.length_BN, rows.done_BN)), strict=True):
        finished = [(float(score), tokens[:n].tolist()) for score, tokens, n, done in zip(*row, strict=True) if done]
        found.append(sorted(finished, reverse=True))
    return found


def log_prob_of(tokens, log_probs, b):
    return sum(log_probs(b, tokens[:i])[token] for i, token in enumerate(tokens))


class TestBeam:
    @pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
    def test_a_wide_one_finds_what_brute_force_finds(self, alpha):
        limits, search = [2, 3, 5, 5], Beam(size=120, alpha=alpha)  # 3 + 9 + 27 + 81 sentences of at most 5 tokens
        table, log_probs = decoder(4)
        rows, _ = run(search, table, limits)
        for b, (found, limit) in enumerate(zip(outcomes(search, rows), limits, strict=True)):
            every = [[*words, EOS] for n in range(1, limit) for words in itertools.product(REGULAR, repeat=n)]
            scores = [log_prob_of(s, log_probs, b) / ((5 + len(s)) / 6) ** alpha for s in every]
            best = int(np.argmax(scores))
            assert found[0][1] == every[best]
            assert found[0][0] == pytest.approx(scores[best], abs=1e-4)

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    @pytest.mark.parametrize("alpha", [0.0, 0.6])
    def test_does_what_it_says(self, size, alpha):
        """A search with lists, which goes on until every row is finished."""
        search, limit = Beam(size, alpha), 9
        table, log_probs = decoder(16, seed=1)
        rows, _ = run(search, table, [limit] * 16, max_length=12)
        for b, found in enumerate(outcomes(search, rows)):
            live, finished = [(0.0, [])], []
            for position in range(limit):
                every = []
                for log_prob, prefix in live:
                    allowed = [*REGULAR, EOS] if position else REGULAR
                    for token in [EOS] if position == limit - 1 else allowed:
                        every.append((log_prob + log_probs(b, prefix)[token], [*prefix, token]))
                every = sorted(every, reverse=True)[: size - len(finished)]
                live = [(p, s) for p, s in every if s[-1] != EOS]
                finished += [(p / ((5 + len(s)) / 6) ** alpha, s) for p, s in every if s[-1] == EOS]
            score, tokens = max(finished)
            assert found[0][1] == tokens and found[0][0] == pytest.approx(score, abs=1e-4)

    def test_ends_early_without_another_result(self):
        @dataclasses.dataclass(frozen=True)
        class Patient(Beam):
            def over(self, rows, limit_B):
                return rows.done_BN.all(-1)

        table, _ = decoder(16, seed=3)
        early, passes_early = run(Beam(4), table, [12] * 16)
        late, passes_late = run(Patient(4), table, [12] * 16)
        for one, other in zip(outcomes(Beam(4), early), outcomes(Beam(4), late), strict=True):
            assert one[0] == other[0] and len(other) == 4
        assert (passes_early <= passes_late).all() and passes_early.sum() < passes_late.sum()

    def test_goes_on_while_a_longer_row_could_still_win(self):
        """The unfinished row has the same score now, and a better one if it ends at the limit of 10 tokens."""
        rows = Hypotheses(
            tokens_BNL=jnp.zeros((1, 2, 10), int),
            length_BN=jnp.array([[2, 2]]),
            log_prob_BN=jnp.array([[-1.0, -1.0]]),
            done_BN=jnp.array([[True, False]]),
        )
        over = [bool(Beam(2, alpha=1.0).over(rows, jnp.array([limit]))[0]) for limit in (2, 10)]
        assert over == [True, False]

    def test_wider_than_what_can_be_written(self):
        table, _ = decoder(2)
        rows, _ = run(Beam(20), table, [2, 2])  # three sentences of two tokens; the other rows lead nowhere
        assert rows.done_BN.sum(-1).tolist() == [3, 3]
        assert {tuple(t) for t in np.asarray(rows.tokens_BNL[rows.done_BN]).tolist()} == {(t, EOS) for t in REGULAR}


class TestSampling:
    LOGITS = jnp.array([9.0, 1.0, 9.0, 0.0, 1.0, 2.0, 9.0, 9.0, 9.0])  # only 3, 4 and 5 may be written first

    def frequencies(self, search, count=20_000):
        def constant(tokens_BNL, slot_BNL, position, logits_V):
            return jnp.broadcast_to(logits_V, (*tokens_BNL.shape[:2], 9)), logits_V

        rows, _ = run(search, self.LOGITS, [2] * (count // search.size), next_fn=constant)
        assert (rows.tokens_BNL[..., 1] == EOS).all()
        return np.bincount(np.asarray(rows.tokens_BNL[..., 0]).ravel(), minlength=9)[3:6] / count

    @pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
    def test_frequencies_are_the_softmax_of_the_allowed(self, temperature):
        weights = np.exp(np.arange(3) / temperature)
        frequencies = self.frequencies(Sampling(temperature, size=2))
        np.testing.assert_allclose(frequencies, weights / weights.sum(), atol=4 * 0.5 / np.sqrt(20_000))

    def test_samples_of_a_sentence_differ(self):
        table, _ = decoder(1)
        rows, _ = run(Sampling(size=8), table, [12])
        assert len({tuple(tokens) for tokens in rows.tokens_BNL[0].tolist()}) > 4


SEARCHED = [Beam(1), Beam(3), Sampling(size=2), Sampling(0.7)]


@pytest.fixture(params=SEARCHED, ids=str)
def search(request):
    return request.param


def test_every_search_is_tested():
    assert {type(each) for each in SEARCHED} == {*SEARCHES.values()}


class TestSearch:
    def test_is_a_frozen_hashable_search(self, search):
        assert isinstance(search, Search) and type(search) in SEARCHES.values()
        assert search == dataclasses.replace(search) and hash(search) == hash(dataclasses.replace(search))

    def test_writes_allowed_tokens_then_eos_then_padding(self, search):
        table, log_probs = decoder(16, seed=5)
        limits = [2, 3, 5, 12] * 4
        rows, passes_B = run(search, table, limits)
        for b, limit in enumerate(limits):
            for n in np.flatnonzero(rows.done_BN[b]):
                tokens, length = rows.tokens_BNL[b, n].tolist(), int(rows.length_BN[b, n])
                assert 2 <= length <= limit and tokens[length - 1] == EOS and not any(tokens[length:])
                assert set(tokens[: length - 1]) <= set(REGULAR)
                # The model's own log-probability, whatever was left out of the choice and at any temperature.
                expected = log_prob_of(tokens[:length], log_probs, b)
                assert float(rows.log_prob_BN[b, n]) == pytest.approx(expected, abs=1e-4)
            assert rows.done_BN[b].any() and int(rows.length_BN[b].max()) == int(passes_B[b]) <= limit

    def test_a_sentence_does_not_depend_on_its_batch_or_its_bucket(self, search):
        limits, key_B = [12, 4, 12, 7] * 4, keys(16)
        table, _ = decoder(16, seed=6)
        together, passes_B = run(search, table, limits)
        wide, passes_wide_B = run(search, table, limits, max_length=20)
        np.testing.assert_array_equal(wide.tokens_BNL[..., :12], together.tokens_BNL)
        np.testing.assert_array_equal(passes_wide_B, passes_B)
        alone, _ = run(search, table[2:3], limits[2:3], key_B=key_B[2:3])
        np.testing.assert_array_equal(alone.tokens_BNL[0], together.tokens_BNL[2])
