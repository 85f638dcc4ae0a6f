"""Lexical shortlists, which restrict the output vocabulary of a batch to likely translations of its source ids.

1. `padir.jobs.learn_shortlist` learns which target ids each source id is translated to.
2. `Shortlist.restrict` lists the candidates of a batch's source ids, the most frequent ids, and all special ids; the
   next most frequent ids pad the list to one of few sizes, so that few programs are compiled.
3. `compact` makes a model with these ids alone, from their rows of the token embedding and of the projection. This
   model drafts, refines and searches like any other, with fewer logits. `expand` turns the written ids into ids of the
   whole vocabulary.

So the output ids of a sentence depend on the other sentences of its batch. Random drafts are drawn from the ids of the
batch, and log-probabilities are over these ids.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from padir import checks
from padir.errors import PadirError
from padir.models.transformer import Transformer
from padir.storage.arrays import check_vocabulary, load_arrays, save_arrays
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer

SIZES = tuple(n << k for k in range(8, 24) for n in (2, 3))  # sizes of a batch's vocabulary: 512, 768, 1024, ...
FORMAT = "padir-shortlist 1"

# The vocabulary's axis in each table from which rows or columns are gathered, quantised tables included.
_AXES = {"embedding": 0, "embedding_scale": 0, "kernel": 1, "kernel_scale": 0}


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """The likely target ids of each source id; P is the number of ids without the sentinels.

    Shortlists of the same `sha256` are equal.

    Attributes:
      vocabulary: SHA-256 of the vocabulary's file.
      candidates_PK: target ids of each source id, most probable first, then zeros. Row 0 is for the NULL word of word
        alignment; its candidates are on every sentence's list.
      by_frequency_N: all regular ids, the most frequent in targets first.
      frequent: number of the most frequent ids, which are on every sentence's list.

    Raises:
      PadirError: the arrays have wrong shapes or values.
    """

    vocabulary: str
    candidates_PK: np.ndarray = dataclasses.field(repr=False)
    by_frequency_N: np.ndarray = dataclasses.field(repr=False)
    frequent: int

    def __post_init__(self):
        table, order = self.candidates_PK, self.by_frequency_N
        checks.counts(0, frequent=self.frequent)
        if table.ndim != 2 or table.shape[1] < 1 or order.ndim != 1 or len(np.unique(order)) != len(order):
            needed = "candidates [P, K] with K >= 1, and different ids by frequency"
            raise PadirError(f"a shortlist needs {needed}, got shapes {table.shape} and {order.shape}")
        if any(ids.size and not 0 <= ids.min() <= ids.max() < len(table) for ids in (table, order)):
            raise PadirError(f"the ids of a shortlist must lie in 0 .. {len(table) - 1}")

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the shortlist's contents."""
        digest = hashlib.sha256(f"{self.vocabulary} {self.frequent} {self.candidates_PK.shape}".encode())
        for array in (self.candidates_PK, self.by_frequency_N):
            digest.update(np.ascontiguousarray(array, "<i4").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shortlist) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def describe(self) -> dict[str, Any]:
        """The shortlist's sizes and SHA-256, as a JSON object."""
        return {"candidates": self.candidates_PK.shape[1], "frequent": self.frequent, "sha256": self.sha256}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the shortlist atomically to a file in NumPy's format .npz."""
        arrays = {"candidates_PK": self.candidates_PK, "by_frequency_N": self.by_frequency_N}
        save_arrays(path, FORMAT, vocabulary=self.vocabulary, frequent=self.frequent, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Shortlist:
        """Reads a file that `save` wrote.

        Raises:
          PadirError: the file is missing, is damaged or holds no shortlist.
        """
        remedy = "make one with `padir shortlist`"
        kinds = {"vocabulary": str, "candidates_PK": np.int32, "by_frequency_N": np.int32, "frequent": int}
        return cls(**load_arrays(path, FORMAT, "shortlist", remedy, kinds))

    def check(self, tokenizer: Tokenizer) -> None:
        """Refuses a model with another vocabulary than the one that the shortlist was learned with."""
        model = tokenizer.sha256, tokenizer.ids.end_regular
        check_vocabulary("shortlist", (self.vocabulary, len(self.candidates_PK)), model)

    def likely(self, source_ids: np.ndarray) -> np.ndarray:
        """Marks the target ids on the list of given source ids, [P]: candidates, frequent ids and all special ids.

        Args:
          source_ids: an array of any shape; sentinels have no candidates.
        """
        likely_P = np.ones(len(self.candidates_PK), bool)
        likely_P[self.by_frequency_N[self.frequent :]] = False
        source_ids = np.unique(source_ids)
        likely_P[self.candidates_PK[source_ids[source_ids < len(likely_P)]]] = True
        likely_P[self.candidates_PK[0]] = True
        return likely_P

    def restrict(self, source_BS: np.ndarray, ids: Ids) -> np.ndarray | None:
        """Output ids of a batch in ascending order, padded to one of `SIZES`; None for the whole vocabulary."""
        likely_P = self.likely(source_BS)
        count = int(likely_P.sum()) + ids.num_sentinels
        size = next((size for size in SIZES if size >= count), ids.vocab_size)
        if size >= ids.vocab_size:
            return None
        others = self.by_frequency_N[~likely_P[self.by_frequency_N]]
        likely_P[others[: size - count]] = True
        return np.concatenate([np.flatnonzero(likely_P), np.arange(ids.end_regular, ids.vocab_size)]).astype(np.int32)


def compact(model: Transformer, params: Any, kept_v: Int[Array, " v"] | None) -> tuple[Transformer, Any]:
    """Makes a model whose vocabulary is the ids of `Shortlist.restrict` only, renumbered; None: the model unchanged.

    Special ids keep their meaning: padding, EOS, unk and bytes come first, sentinels last.
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
    """Turns ids of a compact model into ids of the whole vocabulary."""
    return tokens if kept_v is None else kept_v[tokens]
