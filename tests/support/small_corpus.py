"""A parallel corpus of counted words, small enough to check by hand, for the tests of preparing and loading."""

import dataclasses
import functools
import io
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

from padir.data.formats import Corpus
from padir.text.tokenizer import Tokenizer, train

GERMAN = "null eins zwei drei vier fünf sechs sieben acht neun".split()
ENGLISH = "zero one two three four five six seven eight nine".split()


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers read out digit by digit: 1 to `longest` words a side."""

    num_train: int = 300
    longest: int = 12
    name: str = "numbers_de_en"
    source_language: str = "de"
    target_language: str = "en"
    splits: tuple[str, ...] = ("train", "validation")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        rng = random.Random(split)
        for _ in range(self.num_train if split == "train" else 20):
            digits = [rng.randrange(10) for _ in range(rng.randint(1, self.longest))]
            yield " ".join(GERMAN[d] for d in digits), " ".join(ENGLISH[d] for d in digits)

    def corpora(self, split: str) -> list[Corpus]:
        return [Corpus(self.name, self.pairs(split))]


@dataclasses.dataclass(frozen=True)
class Listed:
    """The pairs that a test lists."""

    train: tuple[tuple[str, str], ...]
    validation: tuple[tuple[str, str], ...] = (("eins", "one"),)
    name: str = "listed"
    source_language: str = "de"
    target_language: str = "en"
    splits: tuple[str, ...] = ("train", "validation")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return iter(getattr(self, split))

    def corpora(self, split: str) -> list[Corpus]:
        return [Corpus(self.name, self.pairs(split))]


def small_tokenizer(path) -> Tokenizer:
    """One piece for each word of the corpus, so that a sentence has as many tokens as words."""
    tokenizer = Tokenizer(_small_vocabulary())
    tokenizer.save(path)
    return tokenizer


def letters_tokenizer() -> Tokenizer:
    """Pieces of the corpus's letters and no bytes: other characters are unk, as in T5's own vocabulary."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(number_lines()),
        model_writer=made,
        minloglevel=2,
        vocab_size=44,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    return Tokenizer(made.getvalue())


@functools.cache
def _small_vocabulary() -> bytes:
    """The vocabulary's file, made once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        return train(number_lines(), Path(folder) / "vocab.model", size=301).model_bytes


def number_lines() -> list[str]:
    return [line for pair in Numbers(num_train=2000).pairs("train") for line in pair]
