"""Lexical shortlists: a batch is written with the ids that its sources are likely to be translated to, and no others.

1. `padir.jobs.learn_shortlist` learns which target ids each source id is translated to.
2. `Shortlist.restrict` takes those of a batch's source ids, the most frequent ids, and all that are special; more
   frequent ones fill up to one of few sizes, so that few programs are compiled.
3. `compact` makes a model of these ids alone, its part of the token embedding and of the projection gathered: it
   drafts, refines and searches as every other, and computes as many logits. `expand` turns what it wrote into ids of
   the whole vocabulary.

What a sentence can be written with thus depends on the batch that it is in, through the other sentences' ids. Random
drafts are drawn from the ids of the batch, and log-probabilities are over them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import zipfile
import zlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from padir.errors import PadirError
from padir.models.transformer import Transformer
from padir.storage.files import atomic_file
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer

# What NumPy and zipfile say of damaged files; a few bytes can ask for any amount of memory.
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, EOFError, NotImplementedError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)
SIZES = tuple(n << k for k in range(8, 24) for n in (2, 3))  # of a batch's vocabulary: 512, 768, 1024, 1536, 2048, ...
FORMAT = "padir-shortlist 1"

# The axis of the vocabulary in each table that is gathered, quantised ones included.
_AXES = {"embedding": 0, "embedding_scale": 0, "kernel": 1, "kernel_scale": 0}


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """Which target ids each source id is likely to be translated to. P counts all ids but the sentinels.

    Equal where the `sha256` is.

    Attributes:
      vocabulary: the sha256 of the vocabulary's file.
      candidates_PK: target ids of each source id, most probable first; 0 where there are no more. Row 0 is the NULL
        word's, to which what has no source word is aligned: it belongs to every sentence.
      by_frequency_N: all regular ids, the most frequent in targets first.
      frequent: how many of those belong to every sentence.

    Raises:
      PadirError: the arrays have other shapes or values.
    """

    vocabulary: str
    candidates_PK: np.ndarray = dataclasses.field(repr=False)
    by_frequency_N: np.ndarray = dataclasses.field(repr=False)
    frequent: int

    def __post_init__(self):
        table, order = self.candidates_PK, self.by_frequency_N
        if self.frequent < 0:
            raise PadirError(f"frequent must be at least 0, got {self.frequent}")
        if table.ndim != 2 or table.shape[1] < 1 or order.ndim != 1 or len(np.unique(order)) != len(order):
            raise PadirError(
                "a shortlist needs candidates [P, K] with K of at least 1 and different ids by frequency, got shapes"
                f" {table.shape} and {order.shape}"
            )
        if any(ids.size and not 0 <= ids.min() <= ids.max() < len(table) for ids in (table, order)):
            raise PadirError(f"the ids of a shortlist must lie in 0 .. {len(table) - 1}")

    @functools.cached_property
    def sha256(self) -> str:
        """Of all that it holds."""
        digest = hashlib.sha256(f"{self.vocabulary} {self.frequent} {self.candidates_PK.shape}".encode())
        for array in (self.candidates_PK, self.by_frequency_N):
            digest.update(np.ascontiguousarray(array, "<i4").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shortlist) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def describe(self) -> dict[str, Any]:
        """As JSON: how much it keeps, and what tells it apart."""
        return {"candidates": self.candidates_PK.shape[1], "frequent": self.frequent, "sha256": self.sha256}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file in NumPy's format .npz, whole or not at all."""
        with atomic_file(path, binary=True) as file:
            np.savez_compressed(
                file,
                format=FORMAT,
                vocabulary=self.vocabulary,
                frequent=self.frequent,
                candidates_PK=self.candidates_PK,
                by_frequency_N=self.by_frequency_N,
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Shortlist:
        """Reads what `save` wrote.

        Raises:
          PadirError: no such file, or it is damaged or something else.
        """
        remedy = "make one with `padir shortlist`"
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as read:
                if str(read["format"]) != FORMAT:
                    raise PadirError(f"{path} must be of format {FORMAT!r}, got {str(read['format'])!r}: {remedy}")
                arrays = (read["candidates_PK"].astype(np.int32), read["by_frequency_N"].astype(np.int32))
                return cls(str(read["vocabulary"]), *arrays, int(read["frequent"]))
        except PadirError:
            raise
        except OSError as error:
            raise PadirError(f"cannot read the shortlist {path} ({error.strerror or error}): {remedy}") from None
        except _UNREADABLE:
            raise PadirError(f"{path} is damaged or no shortlist: {remedy}") from None

    def check(self, tokenizer: Tokenizer) -> None:
        """Compares the vocabulary with a model's.

        Raises:
          PadirError: it is another one.
        """
        known = tokenizer.sha256 in (self.vocabulary, "")  # numbers for words have no file
        if not known or tokenizer.ids.end_regular != len(self.candidates_PK):
            raise PadirError(
                f"the shortlist is of another vocabulary ({len(self.candidates_PK):,} pieces, sha256"
                f" {self.vocabulary[:8]}) than the model ({tokenizer.ids.end_regular:,} pieces, sha256"
                f" {tokenizer.sha256[:8]}): learn one from data that the model's vocabulary prepared"
            )

    def likely(self, source_ids: np.ndarray) -> np.ndarray:
        """Whether each id is on the list of some source ids, [P]: candidates, frequent ones, all that are not regular.

        Args:
          source_ids: of any shape; sentinels have no candidates.
        """
        likely_P = np.ones(len(self.candidates_PK), bool)
        likely_P[self.by_frequency_N[self.frequent :]] = False
        source_ids = np.unique(source_ids)
        likely_P[self.candidates_PK[source_ids[source_ids < len(likely_P)]]] = True
        likely_P[self.candidates_PK[0]] = True
        return likely_P

    def restrict(self, source_BS: np.ndarray, ids: Ids) -> np.ndarray | None:
        """The ids that a batch is written with, increasing, as many as one of `SIZES`; None: no fewer than all."""
        likely_P = self.likely(source_BS)
        count = int(likely_P.sum()) + ids.num_sentinels
        size = next((size for size in SIZES if size >= count), ids.vocab_size)
        if size >= ids.vocab_size:
            return None
        others = self.by_frequency_N[~likely_P[self.by_frequency_N]]
        likely_P[others[: size - count]] = True
        return np.concatenate([np.flatnonzero(likely_P), np.arange(ids.end_regular, ids.vocab_size)]).astype(np.int32)


def compact(model: Transformer, params: Any, kept_v: Int[Array, " v"] | None) -> tuple[Transformer, Any]:
    """A model of some ids only, which are numbered anew in their order; None: of all, as it is.

    Special ids keep their meaning: padding, EOS, unk and bytes lie below, sentinels on top.

    Args:
      kept_v: from `Shortlist.restrict`; inside jit it may be traced.
    """
    if kept_v is None:
        return model, params
    ids = dataclasses.replace(model.ids, vocab_size=kept_v.size, num_embeddings=kept_v.size)

    def gathered(tables):
        return {name: jnp.take(table, kept_v, axis=_AXES[name], mode="clip") for name, table in tables.items()}

    params = {**params, "token_embedder": gathered(params["token_embedder"])}
    if not model.config.tied:
        decoder = params["decoder"]
        params["decoder"] = {**decoder, "logits_dense": gathered(decoder["logits_dense"])}
    return Transformer(model.config, ids), params


def expand(tokens: Int[Array, "*B"], kept_v: Int[Array, " v"] | None) -> Int[Array, "*B"]:
    """What a compact model wrote, in ids of the whole vocabulary."""
    return tokens if kept_v is None else kept_v[tokens]
