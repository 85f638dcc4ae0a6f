"""Log-probabilities of given pairs: by stages, in any batch, with the length apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, keys, oracle
from support.small_corpus import small_tokenizer
from support.tiny_model import random_translator

from padir.decoding.options import Decoding
from padir.decoding.refine_batch import DraftInputs, encode, lay_out, padded
from padir.decoding.scoring import PairScore, TargetRecorder, score_pairs, summary
from padir.errors import PadirError
from padir.refinement.corruption import Mask, Uniform
from padir.refinement.drafting import draft
from padir.refinement.loop import refine
from padir.refinement.strategies import Padir
from padir.text.ids import EOS

SOURCES = ["eins", "zwei drei vier fünf sechs sieben acht neun", "null null eins"]
TARGETS = ["one", "two three four five six seven eight nine", "zero zero one"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return random_translator(small_tokenizer(tmp_path_factory.mktemp("score") / "vocab.model"))


def test_every_stage_sees_what_the_step_before_it_wrote():
    """A decoder that gives the target 0.9 if the canvas holds token 7 at the first place, and 0.5 before."""
    length_B, target_BL = jnp.array([3]), jnp.array([[7, 8, EOS]])

    def logits_fn(tokens_BL):
        share = jnp.where(tokens_BL[:, :1] == 7, 0.9, 0.5)[..., None]
        at_target = jax.nn.one_hot(target_BL, IDS.vocab_size)
        return jnp.log(at_target * share + (1 - at_target) * (1 - share) / (IDS.vocab_size - 1))

    canvas = draft(keys(1), length_B, 3, Mask(), IDS)
    scored = TargetRecorder(Padir(), target_BL, 3)
    log_prob_BT = refine(keys(1), canvas, logits_fn, scored, num_steps=3, banned_ids=()).memory[1]
    assert np.exp(log_prob_BT[0]).tolist() == pytest.approx(
        [0.5**2, 0.9**2, 0.9**2], rel=1e-4
    )  # two free positions, no EOS


def test_a_row_that_is_done_keeps_what_it_said():
    answer_BL = jnp.array([[7, 1, 0, 0], [7, 8, 9, 1]])
    canvas = draft(keys(2), jnp.array([2, 4]), 4, Uniform(), IDS)
    refined = refine(
        keys(2), canvas, oracle(answer_BL), TargetRecorder(Padir(), answer_BL, 5), num_steps=5, banned_ids=()
    )
    assert refined.passes_B.max() < 5  # it halts: the stages after that are filled
    log_prob_BT = np.asarray(refined.memory[1])
    assert (log_prob_BT > -1e-5).all() and log_prob_BT.shape == (2, 5)


def test_the_first_stage_is_the_products_of_the_model_on_its_noise(translator):
    (result,) = score_pairs(translator, SOURCES[:1], TARGETS[:1], Decoding(num_steps=1))
    target = np.array([[*translator.tokenizer.encode(TARGETS[0]), EOS] + [0] * 6])
    target_BL = target[:, :8]
    source_BS = jnp.asarray(padded(translator.loaded.source_tokens(SOURCES[:1], False)[0], 1))
    encoded, cross_kv = encode(translator.model, translator.params, source_BS)
    _, canvas, logits_fn = lay_out(
        *(translator.model, translator.params),
        DraftInputs(cross_kv, encoded.segment_BS, source_BS, jnp.array([[2]]), jnp.array([[0]])),
        max_target_length=8,
        corruption=translator.card.corruption.full(),
        seed=0,
    )
    log_prob_BLV = jax.nn.log_softmax(logits_fn(canvas.tokens_BL).logits_BLV)
    assert result.log_prob == pytest.approx(float(log_prob_BLV[0, 0, target_BL[0, 0]]), rel=1e-4)
    assert result.tokens == 1 and len(result.stages) == 1 and result.length_log_prob < 0


def test_batches_do_not_matter_and_stages_add_up(translator):
    together = score_pairs(translator, SOURCES, TARGETS, Decoding(num_steps=3))
    assert [result.tokens for result in together] == [1, 8, 3]
    for result in together:
        assert len(result.stages) == 3 and result.log_prob == result.stages[-1] < 0
        assert result.mean == pytest.approx(result.log_prob / result.tokens)
    alone = score_pairs(translator, SOURCES[2:], TARGETS[2:], Decoding(num_steps=3))
    assert alone[0].stages == pytest.approx(together[2].stages, rel=1e-4)
    elsewhere = score_pairs(translator, SOURCES, TARGETS, Decoding(num_steps=3, seed=1))
    assert elsewhere[0].stages[0] != pytest.approx(together[0].stages[0], rel=1e-4)


def test_an_autoregressive_model_is_asked_once(translator, monkeypatch):
    asked = []

    def score(sources, targets, batch_size):
        asked.append((sources, targets, batch_size))
        return [(-2.5, 3)]

    causal = random_translator(translator.tokenizer, causal=True)
    monkeypatch.setattr(causal, "score", score)
    assert score_pairs(causal, ["a"], ["b"], Decoding(batch_size=4)) == [PairScore(-2.5, 3, (-2.5,))]
    assert asked == [(["a"], ["b"], 4)]


def test_the_summary_is_per_token():
    scores = [PairScore(-2.0, 2, (-4.0, -2.0)), PairScore(-4.0, 4, (-8.0, -4.0))]
    assert summary(scores) == {"pairs": 2, "tokens": 6, "mean": -1.0, "stages": [-2.0, -1.0]}


def test_refused(translator):
    with pytest.raises(PadirError, match="got 2 sources and 1 targets"):
        score_pairs(translator, SOURCES[:2], TARGETS[:1])
    with pytest.raises(PadirError, match="target 1 has 32 tokens, the model writes 24"):
        score_pairs(translator, ["eins"], ["one " * 30])
