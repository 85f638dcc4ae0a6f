"""8-bit weights: close to the float ones, a quarter of their size, and the same model everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.small_corpus import Numbers, small_tokenizer
from support.tiny_model import random_translator

from padir.decoding.search import Greedy
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.models.layers import int8_dot
from padir.models.quantization import KEPT, quantise

RNG = np.random.RandomState(0)


def test_what_integers_can_say_comes_back_exactly():
    kernel = jnp.array([[127.0, 2.0], [-5.0, -254.0]])
    quantised = quantise({"kernel": kernel})
    np.testing.assert_array_equal(quantised["kernel"], [[127, 1], [-5, -127]])
    np.testing.assert_array_equal(quantised["kernel_scale"], [1, 2])
    x = jnp.array([[127.0, 3.0], [0.0, 0.0]])
    np.testing.assert_allclose(int8_dot(x, quantised["kernel"], quantised["kernel_scale"]), x @ kernel)


def test_an_error_is_that_of_rounding_to_255_levels():
    x, kernel = jnp.asarray(RNG.randn(9, 64), jnp.float32), jnp.asarray(RNG.randn(64, 32), jnp.float32)
    quantised = quantise({"kernel": kernel})
    error = np.abs(int8_dot(x, quantised["kernel"], quantised["kernel_scale"]) - x @ kernel)
    halves = np.abs(x).max(1, keepdims=True) / 254 * np.abs(kernel).sum(0), np.abs(kernel).max(0) / 254
    assert (error <= halves[0] + halves[1] * (np.abs(x).sum(1, keepdims=True) + 64 * np.abs(x).max() / 254)).all()
    assert 0 < error.mean() < 0.1


@pytest.mark.parametrize("sizes", [{}, {"causal": True}, {"tied": False}, {"rejecter": True}], ids=str)
def test_a_quantised_model_says_about_the_same(tmp_path, sizes):
    translator = random_translator(small_tokenizer(tmp_path / "vocab.model"), **sizes)
    params = quantise(translator.params)
    tokens = jnp.asarray(RNG.randint(3, 60, (4, 12)))
    ones = jnp.ones_like(tokens)
    logits, rounded = (
        jax.tree.leaves(translator.model.apply({"params": each}, tokens, ones, tokens, ones)[0])[0]
        for each in (translator.params, params)
    )
    assert np.corrcoef(np.ravel(logits), np.ravel(rounded))[0, 1] > 0.999
    assert not np.array_equal(logits, rounded)
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves(params)}
    assert kinds == {"float32", "int8"}
    texts = [source for source, _ in Numbers().pairs("validation")][:3]
    options = {"search": Greedy()} if "causal" in sizes else {"num_steps": 2}
    results = Translator(params, translator.card, translator.tokenizer).translate(texts, **options)
    assert all(result.text for result in results)


@pytest.mark.parametrize("sizes", [{}, {"causal": True}], ids=str)
def test_a_model_in_bfloat16_says_about_the_same(tmp_path, sizes):
    translator = random_translator(small_tokenizer(tmp_path / "vocab.model"), **sizes)
    short = translator.in_bfloat16()
    tokens = jnp.asarray(RNG.randint(3, 60, (4, 12)))
    ones = jnp.ones_like(tokens)
    logits, rounded = (
        jax.tree.leaves(each.model.apply({"params": each.params}, tokens, ones, tokens, ones)[0])[0]
        for each in (translator, short)
    )
    assert rounded.dtype == jnp.float32 and not np.array_equal(logits, rounded)
    assert np.corrcoef(np.ravel(logits), np.ravel(rounded))[0, 1] > 0.999
    kinds = {name: {leaf.dtype.name for leaf in jax.tree.leaves(part)} for name, part in short.params.items()}
    assert all(kinds[name] == ({"float32"} if name in KEPT else {"bfloat16"}) for name in kinds)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(translator.params)} == {"float32"}
    texts = [source for source, _ in Numbers().pairs("validation")][:3]
    options = {"search": Greedy()} if "causal" in sizes else {"num_steps": 2}
    assert all(result.text for result in short.translate(texts, **options))


def test_a_rounded_model_is_not_converted_again(tmp_path):
    translator = random_translator(small_tokenizer(tmp_path / "vocab.model")).quantised()
    for convert in (translator.quantised, translator.in_bfloat16):
        with pytest.raises(PadirError, match="rounded to 8 bits already"):
            convert()
