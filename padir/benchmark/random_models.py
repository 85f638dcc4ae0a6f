"""Models of random weights, which are as fast as trained models, and their vocabulary of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.models.card import ModelCard
from padir.models.config import ModelConfig
from padir.models.params import init_params
from padir.models.transformer import Transformer
from padir.refinement.corruption import Uniform
from padir.refinement.strategies import Padir
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer


def numbers(name: str) -> TestSet:
    """A test set without sentences, which names the input of models of random weights."""
    return TestSet(name, "numbers", "numbers", [], [])


class NumberTokenizer(Tokenizer):
    """A vocabulary of numbers, for models of random weights: the text of an id is its number."""

    def __init__(self, ids: Ids):
        self.ids, self.sha256 = ids, ""  # there is no SentencePiece file
        self.copied = frozenset()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def random_translator(config: ModelConfig, vocab_size: int, seed: int = 0) -> Translator:
    """Makes a model of random weights with a vocabulary of numbers, which is as fast as a trained model."""
    ids = Ids(vocab_size)
    params = init_params(Transformer(config, ids), seed)
    own = (None, None) if config.causal else (Uniform(), Padir())
    card = ModelCard(config, ids, *own, "numbers", "numbers", "random weights")
    return Translator(params, card, NumberTokenizer(ids))
