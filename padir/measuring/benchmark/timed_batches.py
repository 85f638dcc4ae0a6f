"""Batches that a benchmark translates: sentences from a test set, or number sequences for models of random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from padir import checks
from padir.data.prepared import load_manifest, read_lengths
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.models.config import ModelConfig
from padir.models.directory import ModelCard
from padir.models.params import init_params
from padir.models.transformer import Transformer
from padir.refinement.corruption import Uniform
from padir.refinement.strategies import Padir
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer
from padir.translator import Translator


@dataclasses.dataclass(frozen=True)
class TimedBatch:
    """Sentences that are translated by one call.

    Attributes:
      texts: the sentences.
      references: reference translations, if quality is measured.
      target_lengths: for models of random weights, the number of target tokens, EOS included, that every system must
        write; None lets each system choose lengths.
    """

    texts: tuple[str, ...]
    references: tuple[str, ...] | None = None
    target_lengths: tuple[int, ...] | None = None


def batches_of(test_set: TestSet, batch_size: int, sentences: int) -> list[TimedBatch]:
    """Draws sentences from a test set and cuts them into batches without sorting by length.

    Args:
      sentences: number of sentences to draw; an incomplete last batch is left out.

    Raises:
      PadirError: the test set has too few sentences with text.
    """
    checks.counts(1, sentences=sentences)
    with_text = [i for i, source in enumerate(test_set.sources) if source.strip()]
    if sentences > len(with_text):
        what = f"the benchmark needs {sentences} sentences, got {len(with_text)} with text"
        raise PadirError(what, remedy="lower batch_size and sentences")
    drawn = np.random.RandomState(0).choice(with_text, sentences, replace=False).tolist()
    return [
        TimedBatch(tuple(test_set.sources[i] for i in part), tuple(test_set.references[i] for i in part))
        for part in _parts(drawn, batch_size)
    ]


def equal_lengths(tokens: int, sentences: int) -> np.ndarray:
    """Source and target lengths of N sentence pairs of equal length, EOS included, [N, 2]."""
    checks.counts(2, tokens=tokens)
    checks.counts(1, sentences=sentences)
    return np.full((sentences, 2), tokens)


def drawn_lengths(folder: str, split: str, sentences: int) -> np.ndarray:
    """Source and target lengths of pairs drawn from a prepared folder, EOS included, [N, 2].

    Raises:
      PadirError: the split has too few pairs, or the folder is not a prepared folder.
    """
    length_N2 = read_lengths(folder, split, load_manifest(folder).split(split, folder).written)
    if not 1 <= sentences <= len(length_N2):
        what = f"the benchmark needs {sentences} lengths, but {folder} has {len(length_N2)}"
        raise PadirError(what, remedy="lower batch_size and sentences")
    return length_N2[np.random.RandomState(0).choice(len(length_N2), sentences, replace=False)]


def batches_of_numbers(length_N2: np.ndarray, batch_size: int, ids: Ids) -> list[TimedBatch]:
    """Batches for models of random weights: sentences of random pieces, with the lengths of their targets.

    Args:
      length_N2: source and target lengths, EOS included.
      ids: ids of the vocabulary from which the pieces are drawn.
    """
    draw = np.random.RandomState(0)
    texts = [
        " ".join(map(str, draw.randint(ids.first_regular, ids.end_regular, source - 1))) for source in length_N2[:, 0]
    ]
    return [
        TimedBatch(tuple(texts[i] for i in part), target_lengths=tuple(length_N2[part, 1].tolist()))
        for part in _parts(list(range(len(texts))), batch_size)
    ]


def _parts(items: list[int], size: int) -> list[list[int]]:
    """Cuts a list into parts of equal size; leaves out an incomplete last part, which would count as a full one."""
    if len(items) < size:
        raise PadirError(f"the benchmark needs at least one batch of {size} sentences, got {len(items)}: ask for more")
    return [items[begin : begin + size] for begin in range(0, len(items) - size + 1, size)]


def numbers(name: str) -> TestSet:
    """A test set without sentences, which names the input of models of random weights."""
    return TestSet(name, "numbers", "numbers", [], [])


class NumberTokenizer(Tokenizer):
    """A vocabulary of numbers, for models of random weights: the text of an id is its number."""

    def __init__(self, ids: Ids):
        self.ids = ids
        self.sha256 = ""  # there is no SentencePiece file
        self.copied = frozenset()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int], source: str | None = None) -> str:
        return " ".join(map(str, ids))


def random_translator(config: ModelConfig, vocab_size: int, seed: int = 0) -> Translator:
    """Makes a model of random weights with a vocabulary of numbers, which is as fast as a trained model."""
    ids = Ids(vocab_size)
    params = init_params(Transformer(config, ids), seed)
    own = (None, None) if config.causal else (Uniform(), Padir())
    card = ModelCard(config, ids, *own, "numbers", "numbers", "random weights")
    return Translator(params, card, NumberTokenizer(ids))
