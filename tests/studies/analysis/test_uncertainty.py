"""The loss of references that are written in several passes, and the search for good schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.refusals import refused
from support.tiny_model import random_translator

from padir import Decoding
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.refine_batch import DraftInputs, RefineOptions, lay_out
from padir.evaluation import TestSet
from padir.refinement import Cmlm, MaskPredict
from padir.refinement.scores import best_tokens, forbid
from padir.studies.analysis.study import refined
from padir.studies.analysis.uncertainty import ORDERS, Plan, nats_by_step, searched
from padir.studies.ising import pass_sizes
from padir.text.ids import EOS

SOURCES = ["eins zwei drei", "vier", "neun acht sieben sechs fünf"]
REFERENCES = ["one two three", "four", "nine eight seven six five"]


def corpus(sentences=slice(None)):
    return TestSet("numbers_de_en", "de", "en", SOURCES[sentences], REFERENCES[sentences])


def nats(translator, test_set, decoding, *plan):
    """What `nats_by_step` finds for a plan, measured beside another one."""
    return nats_by_step(translator, test_set, decoding, [Plan("cosine", 2, "random"), Plan(*plan)])[plan]


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_row_is_the_score_of_a_first_draft(order, translator):
    """The row's sum is -log p of the tokens given the source and a canvas of noise."""
    decoding = translator.resolved(Decoding(num_steps=1, seed=3))
    refiner = translator.refiner(decoding)
    log_prob = tokens = 0
    for source, reference in zip(SOURCES, REFERENCES, strict=True):
        target = [*translator.tokenizer.encode_batch([reference])[0], EOS]
        batch = refiner.encode([SourceSentence(source, translator.loaded.source_tokens([source], False)[0][0])])
        numbers = jnp.array([[len(target)]]), jnp.array([[0]]), 1, decoding.seed
        inputs = DraftInputs(batch.cross_kv, batch.encoded.segment_BS, jnp.asarray(batch.source_BS), *numbers)
        options = RefineOptions(len(target), decoding.strategy, decoding.canvas)

        @jax.jit
        def said(params, inputs, options=options):
            _, canvas, decoder = lay_out(translator.model, params, inputs, options)
            return jax.nn.log_softmax(decoder(canvas).logits_BLV)[0]

        said_LV = said(translator.params, inputs)
        log_prob += float(said_LV[jnp.arange(len(target) - 1), jnp.array(target[:-1])].sum())
        tokens += len(target) - 1
    nats_TT = nats(translator, corpus(), Decoding(seed=3), "linear", 4, order)
    assert nats_TT[0].sum() * tokens == pytest.approx(-log_prob, rel=1e-4)
    assert_array_equal(np.tril(nats_TT, -1), 0.0)


@pytest.mark.parametrize("schedule", ["linear", (0.3, 0.0)])
def test_confident_tokens_come_first(tokenizer, schedule):
    """Two passes over one sentence of masks, computed by hand: the second one sees the likeliest tokens' targets."""
    masked = random_translator(tokenizer, Cmlm(), MaskPredict())
    last = corpus(slice(-1, None))
    tokens = [*masked.tokenizer.encode_batch(last.references)[0]]
    (one,) = refined(masked, last, Decoding(num_steps=1), [len(tokens) + 1])
    memory = (one.batch.cross_kv, one.batch.encoded.segment_BS)

    def logits(tokens_L):
        tokens_BL = one.tokens_TBL[0].copy()
        tokens_BL[0, : len(tokens)] = tokens_L
        segment_BL = (np.arange(tokens_BL.shape[1]) < one.length_B[:, None]).astype(np.int32)
        canvas = map(jnp.array, (tokens_BL, segment_BL))
        output = masked.model.apply({"params": masked.params}, *canvas, *memory, method="decode")
        return output.logits_BLV[:1, : len(tokens)]

    def at_target(logits_BLV):
        return -np.asarray(jax.nn.log_softmax(logits_BLV))[0, np.arange(len(tokens)), tokens]

    first_BLV = logits(one.tokens_TBL[0][0, : len(tokens)])
    score_L = best_tokens(forbid(first_BLV, masked.model.ids.special))[1][0]
    left = len(tokens) // 2 if schedule == "linear" else int(0.3 * len(tokens))
    written = np.argsort(-np.asarray(score_L))[: len(tokens) - left]
    hidden = np.setdiff1d(np.arange(len(tokens)), written)
    between_L = one.tokens_TBL[0][0, : len(tokens)].copy()
    between_L[written] = np.array(tokens)[written]
    first_L, second_L = at_target(first_BLV), at_target(logits(between_L))
    expected = [[first_L[written].sum(), first_L[hidden].sum()], [0.0, second_L[hidden].sum()]]
    nats_TT = nats(masked, last, Decoding(), schedule, 2, "confident")
    assert_allclose(nats_TT * len(tokens), expected, rtol=1e-4)


def test_the_seed_chooses_the_random_order(tokenizer):
    """On masks it chooses nothing else, so that a first draft has the same loss."""
    masked = random_translator(tokenizer, Cmlm(), MaskPredict())
    for order, differs in (("random", True), ("confident", False)):
        one, other = (nats(masked, corpus(), Decoding(seed=s), "linear", 3, order) for s in (0, 1))
        assert one[0].sum() == pytest.approx(other[0].sum(), rel=1e-5)
        assert np.allclose(one, other, rtol=1e-5) != differs


@pytest.mark.parametrize("uncertainty", [lambda k: 1 / (1 + k), lambda k: 1 - k / 15])
def test_searched_shares_are_the_cheapest_of_an_entropy_curve(uncertainty):
    """If every masked token is as uncertain as the number of written ones says, the loss is that of the curve."""
    nats_U = uncertainty(np.arange(15))
    found = searched(np.triu(np.repeat(nats_U[:, None], 15, 1)) / 15)
    curve = np.cumsum([0.0, *nats_U])
    best = [cost for cost, _ in pass_sizes.best_schedules(curve)]
    for shares, cost in zip(found, best, strict=True):
        assert shares[-1] == 0.0
        sizes = -np.diff(np.round(15 * np.array([1.0, *shares]))).astype(int)
        assert pass_sizes.cost(curve, sizes.tolist()) == pytest.approx(cost, abs=1e-9)


def test_refuses_what_it_cannot_measure(translator):
    def measured(order="random", **config):
        changed = random_translator(translator.tokenizer, **config)
        return nats(changed, corpus(), Decoding(), "linear", 2, order)

    with refused("order random, confident, got 'last'"):
        measured("last")
    with refused("CTC model cannot analysed"):
        measured(readout="ctc")
    with refused("decontextualised"):
        measured(decontextualised=True)
