"""Programs of `jax.export`: their numbers are the model's own."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from support.refusals import refuses
from support.tiny_model import random_translator

from padir import Decoding
from padir.interop import jax_programs
from padir.readout import READOUTS
from padir.text.cleaning import clean
from padir.text.ids import EOS, pad_rows

TEXTS = ["eins", "zwei drei vier", "fünf fünf sechs eins", "acht neun null eins zwei drei"]
CTC = {"readout": "ctc", "strategy": READOUTS["ctc"].strategy, "max_length": 48}
SIZES = {"source_length": 16, "target_length": 24}


def programs(translator, decoding, **sizes):
    """The two programs as another process reads them."""
    made = jax_programs(translator, decoding, **SIZES | sizes)
    assert {program.platforms for program in made.values()} == {("cpu", "cuda", "tpu")}
    return (jax.export.deserialize(made[name].serialize()).call for name in ("encode", "refine"))


def sources(loaded):
    return np.asarray(pad_rows(loaded.source_tokens(TEXTS, False)[0], SIZES["source_length"]), np.int32)


@pytest.mark.parametrize("longest", [24, 5])
def test_encode_gives_the_models_lengths(translator, longest):
    encode, _ = programs(translator, None, target_length=longest)
    length_BM, _ = encode(translator.params, sources(translator.loaded))
    known = translator.card.config.max_length
    expected = [[min(max(n, 2), longest) for n in row] for row in translator.predict_lengths(TEXTS, known)]
    assert length_BM.tolist() == expected


@pytest.mark.parametrize(
    ("sizes", "decoding"),
    [
        ({}, Decoding(num_lengths=3, num_steps=4, seed=3)),
        (CTC, Decoding(num_steps=2, blank_penalty=3.0, seed=1)),
        ({}, Decoding(num_lengths=3, num_steps=2, precision="int8")),
    ],
    ids=["plain", "ctc", "int8"],
)
def test_refine_writes_what_the_translator_writes(tokenizer, sizes, decoding):
    translator = random_translator(tokenizer, **sizes)
    loaded = translator.side(decoding)
    encode, refine = programs(translator, decoding)
    length_BM, memory = encode(loaded.params, sources(loaded))
    length_BN = length_BM[:, : decoding.num_lengths]
    steps, seed = jnp.array(decoding.num_steps), jnp.array(decoding.seed)
    target_BNL, log_prob_BN, passes_BN = refine(
        loaded.params, memory, length_BN, jnp.zeros_like(length_BN), steps, seed
    )
    score_BN = log_prob_BN / (length_BN - 1)
    for b, translation in enumerate(translator.translate(TEXTS, decoding)):
        tokens_N = [[i for i in row if i > EOS] for row in target_BNL[b].tolist()]
        texts_N = [loaded.tokenizer.decode(tokens, TEXTS[b]) for tokens in tokens_N]
        best = min(range(len(texts_N)), key=lambda n: ("\ufffd" in texts_N[n], -score_BN[b, n]))
        assert clean(texts_N[best], TEXTS[b]) == translation.text
        assert translation.passes == passes_BN[b, best]
        assert translation.score == pytest.approx(float(score_BN[b, best]), abs=1e-4)


@pytest.mark.parametrize(
    ("sizes", "decoding", "changes", "what"),
    [
        ({"causal": True}, {}, {}, "needs the mode refine"),
        ({"dual": True}, {"mode": "causal"}, {}, "needs the mode refine"),
        (CTC, {"prefix_beam": 2}, {}, "prefix_beam"),
        ({}, {"n_best": 2}, {}, "n_best"),
        ({}, {"placeholders": "tags"}, {}, "placeholders"),
        ({}, {"beam": 2}, {}, "the mode 'causal' needs a dual model"),
        ({}, {"rerank": "mbr", "num_lengths": 2}, {}, "only the rules"),
        ({}, {}, {"source_length": 33}, "source_length must be in [2, 32], got 33"),
        ({}, {}, {"source_length": 1}, "source_length must be"),
        ({}, {}, {"source_length": True}, "source_length must be a whole number"),
        ({}, {}, {"target_length": 25}, "target_length must be in [2, 24], got 25"),
    ],
)
def test_refuses(tokenizer, sizes, decoding, changes, what):
    refuses(jax_programs, what, random_translator(tokenizer, **sizes), Decoding(**decoding), **SIZES | changes)
