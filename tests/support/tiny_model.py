"""A model so small that a test can train it, or decode with it, in a second."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from support.small_corpus import Numbers, small_tokenizer
from support.tiny import drawn_params

from padir.data.prepare import prepare
from padir.decoding.bigrams import Bigrams, Spelling
from padir.decoding.writer import Shapes
from padir.models import ModelCard, ModelConfig, Transformer, save_model
from padir.refinement import Padir, Uniform
from padir.text.ids import Ids
from padir.translator import Translator

# Dropout's random numbers are half of a training program: the tests of dropout set its rate.
TINY = ModelConfig(
    width=16, heads=2, head_dim=8, mlp=32, encoder_layers=1, decoder_layers=1, max_length=24, dropout_rate=0.0
)


def prepared_numbers(folder: Path, numbers: Numbers = Numbers()) -> Path:  # noqa: B008
    """The corpus of counted words, prepared with its vocabulary."""
    prepare(numbers, small_tokenizer(folder / "vocab.model"), folder / "data", progress=False)
    return folder / "data"


def random_translator(tokenizer, corruption=Uniform(), strategy=Padir(), **sizes) -> Translator:  # noqa: B008
    """A translator that has learned nothing: what it writes depends on its input all the same."""
    config = dataclasses.replace(TINY, **sizes)
    if config.causal:
        corruption = strategy = None
    card = ModelCard(config, tokenizer.ids, corruption, strategy, "de", "en", "numbers_de_en", step=7)
    return Translator(jax.tree.map(lambda leaf: leaf, _random_params(config, tokenizer.ids)), card, tokenizer)


def with_bigrams(translator: Translator) -> Translator:
    """The translator with a table of some bigrams, in which pieces that begin a word are known words."""
    tokenizer = translator.tokenizer
    size = len(tokenizer.pieces)
    key_N = np.unique(np.random.default_rng(0).integers(0, size * size, 4 * size))
    previous_N, next_N = (ids.astype(np.int32) for ids in np.divmod(key_N, size))
    count_N = 1 + key_N.astype(np.int32) % 5
    before_V, after_V = (np.bincount(ids, count_N, minlength=size).astype(np.int32) for ids in (previous_N, next_N))
    words = np.unique(Spelling.of(tokenizer).tail_V)
    table = Bigrams(tokenizer.sha256, previous_N, next_N, count_N, before_V, after_V, words)
    return Translator(translator.params, translator.card, tokenizer, table)


def one_shape_translator(tokenizer, **sizes) -> Translator:
    """`random_translator` of at most 16 tokens, whose batches have rows of one length: few programs to compile."""
    return random_translator(tokenizer, **{"max_length": 16} | sizes).with_shapes(Shapes((16,)))


def same(results, expected) -> None:
    """Compares translations: all but the last bits of scores, as batches of other shapes are other matrix products."""

    def alike(each):
        return dataclasses.replace(each, score=0.0, trace=None, candidates=tuple(map(alike, each.candidates)))

    def scores(each):
        return [each.score, *(candidate.score for candidate in each.candidates)]

    assert [alike(each) for each in results] == [alike(each) for each in expected]
    for one, other in zip(results, expected, strict=True):
        assert scores(one) == pytest.approx(scores(other), abs=1e-4)


@functools.cache
def _random_params(config: ModelConfig, ids: Ids):
    """Parameters of a model, made once in a process."""
    return drawn_params(Transformer(config, ids))


def random_model_dir(folder: Path, **sizes) -> Path:
    """`random_translator` as a model directory."""
    folder.mkdir(parents=True, exist_ok=True)
    translator = random_translator(small_tokenizer(folder / "vocabulary"), **sizes)
    save_model(folder / "model", translator.params, translator.card, translator.tokenizer, "train.num_steps = 7\n")
    return folder / "model"
