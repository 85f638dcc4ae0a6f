"""Programs of `jax.export`: they write what `Translator` writes, and other processes make the same bytes."""

import hashlib
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny_model import random_model_dir, random_translator

from padir import Decoding, PadirError, Translator
from padir.decoding.translation import clean
from padir.interop import jax_programs
from padir.models import init_params, products
from padir.readout import Ctc
from padir.text.ids import pad_rows

TEXTS = ["eins", "zwei drei vier", "fünf fünf sechs eins", "acht neun null eins zwei drei"]
CTC = {"readout": "ctc", "strategy": Ctc.strategy, "max_length": 48}
RERANKED = Decoding(num_lengths=3, num_steps=2, rerank="causal", length_normalization=0.5)
SIZES = {"source_length": 16, "target_length": 24}


def translated(translator, decoding, texts):
    """(text, length, score, passes) of each sentence as the programs write them; as in padir, whole characters win."""
    loaded = translator.side(decoding)
    made = jax_programs(translator, decoding, **SIZES, platforms=["cpu"])
    encode, refine = (jax.export.deserialize(bytearray(made[name])).call for name in ("encode", "refine"))
    source_BS = np.asarray(pad_rows(loaded.source_tokens(texts, False)[0], 16), np.int32)
    length_BM, memory = encode(loaded.params, source_BS)
    length_BN = length_BM[:, : decoding.num_lengths]
    numbers = jnp.array(decoding.num_steps), jnp.array(decoding.seed)
    drafts = refine(loaded.params, memory, length_BN, jnp.zeros_like(length_BN), *numbers)
    target_BNL, count_BN, score_BN, passes_BN = (np.asarray(each) for each in drafts)
    for b, source in enumerate(texts):
        written = [row[:count].tolist() for row, count in zip(target_BNL[b], count_BN[b], strict=True)]
        texts_N = [loaded.tokenizer.decode(tokens, source) for tokens in written]
        best = min(range(len(texts_N)), key=lambda n: ("\ufffd" in texts_N[n], -score_BN[b, n]))
        yield clean(texts_N[best], source), length_BN[b, best], score_BN[b, best], passes_BN[b, best]


@pytest.mark.parametrize(
    ("sizes", "decoding"),
    [
        ({}, Decoding(num_lengths=3, num_steps=4, seed=3, length_normalization=0.5)),
        ({"dual": True}, RERANKED),
        ({"dual": True}, RERANKED.changed(num_lengths=1)),  # a single draft is not read again
        (CTC, Decoding(num_steps=2, blank_penalty=3.0)),
        ({"length_head": "affine"}, Decoding(num_lengths=3, num_steps=2, precision="int8")),
    ],
    ids=["own", "causal", "single", "ctc", "int8"],
)
def test_they_write_what_the_translator_writes(tokenizer, sizes, decoding):
    translator = random_translator(tokenizer, **sizes)
    decoding = decoding.changed(mode="refine")
    expected = translator.translate(TEXTS, decoding)
    texts, lengths, scores, passes = zip(*translated(translator, decoding, TEXTS), strict=True)
    assert list(texts) == [each.text for each in expected]
    if sizes is not CTC:  # whose drafts are canvases
        assert list(lengths) == [each.length for each in expected]
    assert list(scores) == pytest.approx([each.score for each in expected], abs=1e-4)
    assert list(passes) == [each.passes for each in expected]
    assert len({*texts}) > 1


BYTES = """
import hashlib, sys, jax
jax.config.update("jax_default_matmul_precision", "bfloat16")
jax.config.update("jax_default_prng_impl", "rbg")
jax.config.update("jax_enable_x64", True)
from padir import Translator
from padir.interop import jax_programs
made = jax_programs(Translator.load(sys.argv[1]), source_length=16, target_length=24)
print(*(hashlib.sha256(program).hexdigest() for program in made.values()))
"""


def test_another_process_with_other_settings_makes_the_same_bytes(tmp_path):
    """They hold no weights and no name of a file, and run on every platform."""
    folder = random_model_dir(tmp_path)
    loaded = Translator.load(folder)
    made = jax_programs(Translator(init_params(loaded.model, seed=1), loaded.card, loaded.tokenizer), **SIZES)
    done = subprocess.run([sys.executable, "-c", BYTES, folder], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hashlib.sha256(program).hexdigest() for program in made.values()]
    for program in made.values():
        assert jax.export.deserialize(bytearray(program)).platforms == ("cpu", "cuda", "tpu")
        assert b".py" not in program


def test_no_length_is_beyond_the_programs(translator):
    made = jax_programs(translator, source_length=16, target_length=5, platforms=["cpu"])
    source_BS = np.asarray(pad_rows(translator.loaded.source_tokens(TEXTS, False)[0], 16), np.int32)
    length_BM, *_ = jax.export.deserialize(bytearray(made["encode"])).call(translator.params, source_BS)
    assert {*np.unique(length_BM).tolist()} == {2, 3, 4, 5}


def test_8_bit_programs_do_not_depend_on_the_processor(translator, monkeypatch):
    made = []
    for fast in (True, False):
        monkeypatch.setattr(products, "_multiplies_bfloat16", lambda fast=fast: fast)
        made.append(jax_programs(translator, Decoding(precision="int8"), **SIZES, platforms=["cpu"]))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("sizes", "decoding", "changes", "what"),
    [
        ({"causal": True}, {}, {}, "needs the mode refine"),
        ({"dual": True}, {"mode": "causal"}, {}, "needs the mode refine"),
        ({"length_head": "oracle"}, {}, {}, "oracle"),
        (CTC, {"prefix_beam": 2}, {}, "prefix_beam"),
        ({}, {"n_best": 2}, {}, "n_best"),
        ({}, {"placeholders": "tags"}, {}, "placeholders"),
        ({}, {"beam": 2}, {}, "beam"),
        ({}, {"rerank": "mbr", "num_lengths": 2}, {}, "only the rules"),
        ({}, {}, {"source_length": 33}, "source_length must be in [2, 32], got 33"),
        ({}, {}, {"source_length": 1}, "source_length must be"),
        ({}, {}, {"source_length": True}, "source_length must be a whole number"),
        ({}, {}, {"target_length": 25}, "target_length must be in [2, 24], got 25"),
        ({}, {}, {"platforms": ("gpu",)}, "platforms"),
        ({}, {}, {"platforms": ()}, "platforms"),
        ({}, {}, {"platforms": "cpu"}, "platforms"),
    ],
)
def test_refuses(tokenizer, sizes, decoding, changes, what):
    with pytest.raises(PadirError) as refused:
        jax_programs(random_translator(tokenizer, **sizes), Decoding(**decoding), **SIZES | changes)
    assert what in str(refused.value)
