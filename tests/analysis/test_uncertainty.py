"""What writing tokens together costs a model, and the sizes of passes that cost least."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.small_corpus import small_tokenizer
from support.tiny_model import random_translator

from padir.analysis.passes import refined
from padir.analysis.subjects.schedule import costs
from padir.analysis.uncertainty import uncertainties
from padir.decoding import score_pairs
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.ising import schedules
from padir.refinement.corruption import Cmlm
from padir.refinement.strategies import MaskPredict
from padir.refinement.strategies.schedules import SCHEDULES

SOURCES = ["eins zwei drei", "vier", "neun acht sieben sechs fünf"]
REFERENCES = ["one two three", "four", "nine eight seven six five"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return random_translator(small_tokenizer(tmp_path_factory.mktemp("vocabulary") / "model"))


def corpus(sentences=slice(None)):
    return TestSet("numbers_de_en", "de", "en", SOURCES[sentences], REFERENCES[sentences])


@pytest.mark.parametrize("order", ["random", "confident"])
def test_the_first_row_is_the_score_of_a_first_draft(order, translator):
    """Both the row's sum and `padir score` are -log p of the tokens given the source and a canvas of noise."""
    scores = score_pairs(translator, SOURCES, REFERENCES, Decoding(num_steps=1, seed=3))
    nats_UU = uncertainties(translator, corpus(), Decoding(seed=3), order=order, steps=4)
    tokens = sum(score.tokens for score in scores)
    assert nats_UU[0].sum() * tokens == pytest.approx(-sum(score.log_prob for score in scores), rel=1e-4)
    np.testing.assert_array_equal(np.tril(nats_UU, -1), 0.0)


def test_confident_tokens_are_shown_first(tmp_path):
    """Two steps of one sentence of masks, computed by hand: its two likeliest tokens are shown to the second."""
    masked = random_translator(small_tokenizer(tmp_path / "model"), Cmlm(), MaskPredict())
    tokens = [*masked.tokenizer.encode_batch(REFERENCES[-1:])[0]]
    (one,) = refined(masked, corpus(slice(-1, None)), Decoding(num_steps=1), [len(tokens) + 1])
    memory = (one.batch.cross_kv, one.batch.encoded.segment_BS)

    def log_probs(tokens_L):
        tokens_BL = one.tokens_TBL[0].copy()
        tokens_BL[0, : len(tokens)] = tokens_L
        segment_BL = (np.arange(tokens_BL.shape[1]) < one.length_B[:, None]).astype(np.int32)
        output = masked.model.apply(
            {"params": masked.params}, *map(jnp.array, (tokens_BL, segment_BL)), *memory, method="decode"
        )
        return np.asarray(jax.nn.log_softmax(output.logits_BLV))[0, : len(tokens)]

    first_LV = log_probs(one.tokens_TBL[0][0, : len(tokens)])
    shown = np.argsort(-first_LV.max(-1))[: len(tokens) // 2]
    hidden = np.setdiff1d(np.arange(len(tokens)), shown)
    between_L = one.tokens_TBL[0][0, : len(tokens)].copy()
    between_L[shown] = np.array(tokens)[shown]
    second_LV = log_probs(between_L)
    at_target = [-each_LV[np.arange(len(tokens)), tokens] for each_LV in (first_LV, second_LV)]
    expected = [[at_target[0][shown].sum(), at_target[0][hidden].sum()], [0.0, at_target[1][hidden].sum()]]
    nats_UU = uncertainties(masked, corpus(slice(-1, None)), Decoding(), order="confident", steps=2)
    np.testing.assert_allclose(nats_UU * len(tokens), expected, rtol=1e-4)


def test_costs_of_tokens_in_random_order_are_those_of_an_entropy_curve():
    """If every hidden token is as uncertain as the number of shown ones says, and no more."""
    for uncertain, named in ((lambda k: 1 / (1 + k), "geometric"), (lambda k: 1 - k / 15, "linear")):
        nats_U = uncertain(np.arange(15))
        rows = costs(np.triu(np.repeat(nats_U[:, None], 15, 1)) / 15, (1, 3, 4, 99))
        curve = np.cumsum([0.0, *nats_U])
        assert [row["passes"] for row in rows] == [1, 3, 4, 15]
        for row in rows:
            for name in SCHEDULES:
                expected = schedules.cost(curve, schedules.sizes_of(name, 15, row["passes"])) / 15
                assert row[name] == pytest.approx(expected, abs=1e-9)
            assert row["best"] == pytest.approx(schedules.best_schedules(curve)[row["passes"] - 1][0] / 15, abs=1e-9)
            assert row["shares"][-1] == 0.0 and len(row["shares"]) == row["passes"]
        assert rows[2]["best"] == pytest.approx(rows[2][named], rel=0.01)


def test_refuses_an_unknown_order(translator):
    with pytest.raises(PadirError, match="order must be one of random, confident, got 'last'"):
        uncertainties(translator, corpus(), Decoding(), order="last", steps=2)
