"""Bigrams: a table of what follows what in the target language, and which words it has.

`padir.jobs.learn_bigrams` learns it from the training text. `Bigrams` is the file, and `BigramScore` the table in the
form that programs read: they weigh it in while they choose tokens (`padir.decoding.fusion`).

The probability of a piece after another one is interpolated absolute discounting (Ney, Essen and Kneser, 1994): seen
bigrams give up a part of their count, which is shared out by the frequency of the next piece. A word is a run of
letters, whatever its pieces are. Its hash grows with each piece, so that one number for each prefix is enough.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from padir.errors import PadirError
from padir.storage.arrays import check_vocabulary, load_arrays, save_arrays
from padir.storage.manifest import Manifest
from padir.text.ids import PADDING
from padir.text.tokenizer import Tokenizer

# `_PRIME`, `_LETTERS`, `_hash` and lower case are part of the format, because files hold hashes of words; the
# discount, the columns and the bitmap are made anew whenever a file is read.
FORMAT = "padir-bigrams 1"
_PRIME = 16_777_619  # of hashes (FNV)
FILE = "bigrams.npz"
BEGIN = PADDING  # the id that stands before the first piece
_DISCOUNT = 0.75  # of a seen bigram's count
_COLUMNS = 0xFFFE  # a key has 16 bits for each piece; this number is for all pieces without a bigram
_NO_KEY = np.uint32(0xFFFFFFFF)
_BITS = 22  # of the bitmap of known words, in which one of some hundred unknown words seems known
_LETTERS = re.compile(r"[^\W\d_]+")
_ARRAYS = dict.fromkeys(("previous_N", "next_N", "count_N", "before_V", "after_V"), np.int32) | {"word_W": np.uint32}
_REMEDY = "make a model with one by `padir bigrams`"


@dataclasses.dataclass(frozen=True, eq=False)
class Bigrams:
    """Counts of bigrams of target pieces, N kept ones of V ids, and hashes of W known words.

    Attributes:
      vocabulary: SHA-256 of the vocabulary's file.
      previous_N, next_N, count_N: kept bigrams in the order of their ids; `BEGIN` stands before the first piece, EOS
        after the last.
      before_V, after_V: how often an id was the first and the second piece of a bigram, kept or not.
      word_W: hashes of known words (`Spelling.words`), in ascending order; none for languages without spaces.

    Raises:
      PadirError: the arrays do not belong together.
    """

    vocabulary: str
    previous_N: np.ndarray = dataclasses.field(repr=False)
    next_N: np.ndarray = dataclasses.field(repr=False)
    count_N: np.ndarray = dataclasses.field(repr=False)
    before_V: np.ndarray = dataclasses.field(repr=False)
    after_V: np.ndarray = dataclasses.field(repr=False)
    word_W: np.ndarray = dataclasses.field(repr=False)

    def __post_init__(self):
        size = len(self.before_V)
        ids = np.stack([self.previous_N, self.next_N])
        if self.after_V.shape != (size,) or self.count_N.shape != ids.shape[1:] or self.word_W.ndim != 1:
            raise PadirError("the arrays of bigrams have different lengths", remedy=_REMEDY)
        if ids.size and not 0 <= ids.min() <= ids.max() < size:
            raise PadirError("ids of bigrams", f"in 0 .. {size - 1}", f"{ids.min()} .. {ids.max()}", _REMEDY)
        key_N = ids[0].astype(np.int64) * size + ids[1]
        if (np.diff(key_N) <= 0).any() or (self.count_N < 1).any():
            raise PadirError("bigrams must be in order, each once, with positive counts", remedy=_REMEDY)
        counted_V = np.bincount(self.previous_N, self.count_N, minlength=size)
        if (self.before_V < counted_V).any() or (self.after_V < 0).any():
            raise PadirError("an id must be the first of at least as many bigrams as are kept", remedy=_REMEDY)

    def describe(self) -> dict[str, Any]:
        """Numbers of kept bigrams and words, and the share of the text's bigrams that the kept ones are."""
        share = float(self.count_N.sum() / max(1, self.before_V.sum()))
        return {"bigrams": len(self.count_N), "share": share, "words": len(self.word_W)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table atomically to a file in NumPy's format .npz."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_arrays(path, FORMAT, vocabulary=self.vocabulary, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Bigrams:
        """Reads a file that `save` wrote.

        Raises:
          PadirError: the file is missing, is damaged or holds no bigrams.
        """
        return cls(**load_arrays(path, FORMAT, "table of bigrams", _REMEDY, {"vocabulary": str, **_ARRAYS}))

    @classmethod
    def of_model(cls, folder: Path) -> Bigrams | None:
        """Reads the table of a model directory, whose files are checked; None if it has none."""
        return cls.load(folder / FILE) if FILE in Manifest.read(folder).files else None

    def check(self, tokenizer: Tokenizer) -> None:
        """Refuses a model with another vocabulary than the one that the bigrams were counted with."""
        model = tokenizer.sha256, len(tokenizer.pieces)
        check_vocabulary("table of bigrams", (self.vocabulary, len(self.before_V)), model)

    def log_probs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-probabilities of the kept bigrams [N]; of falling back after each id, and of each id then [V].

        An unseen bigram has the sum of the two latter numbers.
        """
        lower_V = (self.after_V + 0.5) / (self.after_V + 0.5).sum()
        total_V = np.maximum(self.before_V, 1)
        kept_N = np.maximum(self.count_N - _DISCOUNT, 0) / total_V[self.previous_N]
        share_V = 1.0 - np.bincount(self.previous_N, kept_N, minlength=len(total_V))
        share_V = np.clip(share_V, 1e-6, 1.0)
        seen_N = np.log(kept_N + share_V[self.previous_N] * lower_V[self.next_N])
        arrays = seen_N, np.log(share_V), np.log(lower_V)
        return arrays[0].astype(np.float32), arrays[1].astype(np.float32), arrays[2].astype(np.float32)

    def on_device(self, tokenizer: Tokenizer) -> BigramScore:
        """The table in the form that programs read.

        Raises:
          PadirError: the tokenizer has another vocabulary.
        """
        self.check(tokenizer)
        often_V = self.before_V.astype(np.int64) + self.after_V
        order_V = np.argsort(-often_V, kind="stable")[:_COLUMNS]
        column_V = np.full(len(often_V), _COLUMNS, np.uint32)
        column_V[order_V] = np.arange(len(order_V))
        kept_N = (column_V[self.previous_N] < _COLUMNS) & (column_V[self.next_N] < _COLUMNS)
        names = ("previous_N", "next_N", "count_N")
        kept = dataclasses.replace(self, **{name: getattr(self, name)[kept_N] for name in names})
        seen_N, back_V, lower_V = kept.log_probs()
        key_N = column_V[kept.previous_N] << np.uint32(16) | column_V[kept.next_N]
        order_N = np.argsort(key_N)
        return BigramScore(
            column_V=jnp.asarray(column_V),
            key_M=jnp.asarray(np.append(key_N[order_N], _NO_KEY)),
            value_M=jnp.asarray(np.append(seen_N[order_N], np.float32(0))),
            back_V=jnp.asarray(back_V),
            lower_V=jnp.asarray(lower_V),
            spelling=Spelling.of(tokenizer),
            known=jnp.asarray(_bitmap(self.word_W)) if len(self.word_W) else None,
            end_regular=tokenizer.ids.end_regular,
        )


def _bitmap(word_W: np.ndarray) -> np.ndarray:
    """The known words as bits of 2 ** (_BITS - 5) numbers."""
    bit_W = _bit(word_W.astype(np.uint32))
    bits = np.zeros(1 << (_BITS - 5), np.uint32)
    np.bitwise_or.at(bits, bit_W >> np.uint32(5), np.uint32(1) << (bit_W & np.uint32(31)))
    return bits


def _bit(word: Any) -> Any:
    return (word * np.uint32(0x9E3779B1)) >> np.uint32(32 - _BITS)


def _listed(known: Any, word: Any) -> Any:
    """True for hashes whose bits are set in a bitmap, NumPy's or JAX's."""
    bit = _bit(word)
    return (known[bit >> np.uint32(5)] >> (bit & np.uint32(31))) & np.uint32(1) == 1


@flax.struct.dataclass
class Spelling:
    """Hashes of the letters of each piece: letters that continue a word, and letters after an end of word.

    Attributes:
      lead_V, factor_V: hash of the letters before an end of word, and the number that multiplies the hash before them.
      ends_V: True for pieces with something else than letters: spaces, digits, punctuation, bytes, marks.
      tail_V: hash of the letters after the last end of word.
    """

    lead_V: UInt32[Array, " V"]
    factor_V: UInt32[Array, " V"]
    ends_V: Bool[Array, " V"]
    tail_V: UInt32[Array, " V"]

    @staticmethod
    def of(tokenizer: Tokenizer) -> Spelling:
        """The spelling of a tokenizer's pieces, without regard to case."""
        size = len(tokenizer.pieces)
        lead_V, factor_V, tail_V = np.zeros(size, np.uint32), np.ones(size, np.uint32), np.zeros(size, np.uint32)
        ends_V = np.ones(size, bool)
        for i in range(tokenizer.ids.first_regular, tokenizer.ids.end_regular):
            text = tokenizer.pieces[i].lower()
            runs = [*_LETTERS.finditer(text)]
            ends_V[i] = not runs or runs[0].span() != (0, len(text))
            if runs and runs[0].start() == 0:
                lead_V[i] = _hash(runs[0][0])
                factor_V[i] = pow(_PRIME, len(runs[0][0]), 1 << 32)
            if ends_V[i] and runs and runs[-1].end() == len(text):
                tail_V[i] = _hash(runs[-1][0])
        return Spelling(*map(jnp.asarray, (lead_V, factor_V, ends_V, tail_V)))

    def grown(self, word: Any, token: Any) -> tuple[Any, Any]:
        """The hash of the word that a token ends, 0 if it ends none, and of the word that is open after it.

        Args:
          word: hashes of the open words before the tokens, 0 for none.
        """
        read = word * self.factor_V[token] + self.lead_V[token]
        ends = self.ends_V[token]
        return read * ends, (read * ~ends) + self.tail_V[token]

    def words(self, tokens_BL: Int[Array, "B L"]) -> UInt32[Array, "B L"]:
        """The hash of the word that each token of padded sentences ends, 0 for none; padding ends a word, too.

        Reading a piece is an affine function of the open word's hash, so that the open words after all positions are
        compositions (`jax.lax.associative_scan`).
        """
        ends_BL = self.ends_V[tokens_BL]
        factor_BL = jnp.where(ends_BL, np.uint32(0), self.factor_V[tokens_BL])
        added_BL = jnp.where(ends_BL, self.tail_V[tokens_BL], self.lead_V[tokens_BL])

        def composed(first, second):
            return first[0] * second[0], first[1] * second[0] + second[1]

        _, open_BL = jax.lax.associative_scan(composed, (factor_BL, added_BL), axis=1)
        return self.grown(jnp.pad(open_BL[:, :-1], ((0, 0), (1, 0))), tokens_BL)[0]


def all_known(known: np.ndarray, text: str, source: str) -> bool:
    """True if a bitmap of known words, or a text's source, has every word of the text."""
    own = {*_LETTERS.findall(source.lower())}
    words = [_hash(word) for word in _LETTERS.findall(text.lower()) if word not in own]
    return bool(_listed(known, np.array(words, np.uint32)).all())


def _hash(letters: str) -> int:
    return functools.reduce(lambda value, letter: (value * _PRIME + ord(letter)) % (1 << 32), letters, 0)


@flax.struct.dataclass
class BigramScore:
    """The table of a model in the form that programs read; M bigrams, of which the last is none.

    Attributes:
      column_V: number of each id in keys.
      key_M, value_M: keys of the bigrams in ascending order, and their log-probabilities.
      back_V, lower_V: as in `Bigrams.log_probs`.
      spelling: what each piece adds to a word.
      known: bitmap of known words; None for languages without spaces.
      end_regular: the ids from here on are marks of placeholders, about which the table knows nothing.
    """

    column_V: UInt32[Array, " V"]
    key_M: UInt32[Array, " M"]
    value_M: Float[Array, " M"]
    back_V: Float[Array, " V"]
    lower_V: Float[Array, " V"]
    spelling: Spelling
    known: UInt32[Array, " _"] | None
    end_regular: int = flax.struct.field(pytree_node=False)

    def log_prob(self, previous: Int[Array, "*#B"], following: Int[Array, "*#B"]) -> Float[Array, "*B"]:
        """Log-probability of ids after other ids."""
        key = self.column_V[previous] << np.uint32(16) | self.column_V[following]
        place = jnp.searchsorted(self.key_M, key, method="scan_unrolled")
        seen = self.key_M[place] == key
        return jnp.where(seen, self.value_M[place], self.back_V[previous] + self.lower_V[following])

    def knows(self, word: UInt32[Array, "*B"], own: UInt32[Array, "*#B W"]) -> Bool[Array, "*B"]:
        """True for hashes of known words, for 0, and for words that a sentence's `own` list has."""
        assert self.known is not None
        return (word == 0) | _listed(self.known, word) | (word[..., None] == own).any(-1)
