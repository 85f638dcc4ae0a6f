"""`LoadedModel`: parameters on their devices, the model card, and the conversion of text to the encoder's input."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from padir.decoding.bigrams import Bigrams, BigramScore
from padir.decoding.encoding import encode, padded_length
from padir.decoding.program_cache import PROGRAMS, check_process
from padir.decoding.shortlist import Shortlist
from padir.distributed.sharding import DATA, mesh_of, spread
from padir.errors import PadirError
from padir.models.directory import ModelCard
from padir.models.encoder import Encoded
from padir.models.params import KEPT, in_model_dtype, quantise
from padir.models.transformer import Transformer
from padir.text.ids import EOS, pad_rows, round_up
from padir.text.normalise import Normalised, composed
from padir.text.tokenizer import Tokenizer, surrogates_error

_MAKING = threading.RLock()  # sides, tables and converted parameters, which several threads ask for


class EncodedBatch(NamedTuple):
    """Encoded sentences; rows that only pad the batch come last.

    Attributes:
      source_BS: the encoder's input, on the host.
      encoded: the encoder's output, on the device.
      cross_kv: each decoder layer's keys and values of this output.
    """

    source_BS: Int[np.ndarray, "B S"]
    encoded: Encoded
    cross_kv: Any


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can decode; if several devices hold its parameters, they share the rows of a batch.

    Attributes:
      bigrams: the model's table of bigrams; None for none.
      origin: the model that this is a side of; None for the model itself.
    """

    params: Any
    card: ModelCard
    tokenizer: Tokenizer
    bigrams: Bigrams | None = None
    origin: LoadedModel | None = None

    @property
    def table(self) -> BigramScore:
        """The model's bigrams in the form that programs read, made once for all sides of a model."""
        with _MAKING:
            return (self.origin or self)._table

    @functools.cached_property
    def _table(self) -> BigramScore:
        assert self.bigrams is not None
        return self.bigrams.on_device(self.tokenizer)

    @functools.cached_property
    def model(self) -> Transformer:
        """The module that the parameters belong to."""
        return Transformer(self.card.config, self.card.ids)

    @property
    def converted(self) -> Any:
        """The parameters as programs of decoding read them (`in_model_dtype`), converted once, not in every batch."""
        with _MAKING:
            return self._converted

    @functools.cached_property
    def _converted(self) -> Any:
        if self.origin is not None and self.card.config.causal and not self.origin.card.config.causal:
            return self.origin.side("refine", self.precision).converted  # both sides of a dual model share one copy
        return in_model_dtype(self.card.config, self.params)

    @functools.cached_property
    def mesh(self) -> Mesh | None:
        """The devices that share the rows of a batch; None for a single device."""
        return mesh_of(self.params)

    @property
    def platform(self) -> str:
        """The platform that programs with these parameters are compiled for, such as "cpu"."""
        leaf = jax.tree.leaves(self.params)[0]
        return next(iter(leaf.devices() if isinstance(leaf, jax.Array) else jax.devices())).platform

    def place(self, rows: Any) -> Any:
        """Spreads arrays [B, ...] over the devices that share the rows; returns them unchanged for one device."""
        if self.mesh is None:
            return rows
        by_row = NamedSharding(self.mesh, PartitionSpec(DATA))
        return jax.tree.map(lambda array: spread(np.asarray(array), by_row), rows)

    def padded(self, rows: Sequence[list[int]], batch_size: int, lengths: Sequence[int] = ()) -> np.ndarray:
        """Pads token lists to an array of one of few shapes, so that few programs are compiled.

        The number of rows is at most `batch_size`, rounded up so that the devices can share the rows equally. The
        length of the rows is `padded_length`.
        """
        devices = 1 if self.mesh is None else self.mesh.shape[DATA]
        num_rows = round_up(min(batch_size, 1 << (len(rows) - 1).bit_length()), devices)
        return pad_rows(list(rows), padded_length(max(map(len, rows)), lengths), num_rows)

    def encode(self, tokens: Sequence[list[int]], batch_size: int, lengths: Sequence[int] = ()) -> EncodedBatch:
        """Encodes a batch of `source_tokens`; the arrays may not be computed yet. Arguments are as in `padded`."""
        source_BS = self.padded(tokens, batch_size, lengths)
        with self.on_devices():
            encoded, cross_kv = encode(self.model, self.converted, self.place(source_BS))
        return EncodedBatch(source_BS, encoded, cross_kv)

    def on_devices(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which programs run on the devices of the parameters.

        A process with too many programs drops some first (`ProgramCache.make_room`).
        """
        PROGRAMS.make_room()
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def side(self, mode: str, precision: str | None = None) -> LoadedModel:
        """The side for a mode of `padir.options.MODES` and a precision, by default its own; each is made once.

        int8 rounds the weights to 8 bits. A sentence's translation may then depend on its batch, because a difference
        in the last bits can change the rounding of an activation. bfloat16 is for weights and activations; softmax,
        logits and the length head stay float32.
        """
        precision = precision or self.precision
        if self.origin is not None:
            return self.origin.side(mode, precision)
        if mode == "refine" and self.card.config.causal:
            raise PadirError("an autoregressive model has no side that refines")
        key = mode, precision  # of the model itself
        with _MAKING:
            if key not in self._sides:
                if mode == "causal" and not self.card.config.causal:  # the autoregressive side of a dual model
                    refines = self.side("refine", precision)  # with the same parameters
                    config = refines.card.config.as_causal()
                    card = dataclasses.replace(refines.card, config=config, corruption=None, strategy=None)
                    made = dataclasses.replace(refines, card=card, origin=self)
                else:
                    made = self._in_precision(precision)
                self._sides[key] = made
            return self._sides[key]

    @functools.cached_property
    def _sides(self) -> dict[tuple[str, str], LoadedModel]:
        return {}

    def sentence_side(self, task: str) -> LoadedModel:
        """The side that reads finished sentences: the causal one of a dual model whose canvas is no sentence.

        Raises:
          PadirError: the model has no such side, so that it cannot do the task.
        """
        if not self.card.config.dual:
            self.card.config.check_sentence(task, "take a dual model, whose causal side can")
        return self if self.card.config.geometry.is_sentence else self.side("causal")

    @property
    def aligns(self) -> bool:
        """True if the model can read finished sentences, and so align words."""
        return self.card.config.dual or self.card.config.geometry.is_sentence

    def _in_precision(self, precision: str) -> LoadedModel:
        if precision == self.precision:
            return self
        if self.precision == "int8":
            remedy = "leave precision out, or load the weights that were rounded"
            raise PadirError("precision", "int8 for weights that are rounded to 8 bits", precision, remedy)
        if precision == "int8":
            return dataclasses.replace(self, params=jax.jit(quantise)(self.params), origin=self)
        card = dataclasses.replace(self.card, config=dataclasses.replace(self.card.config, dtype=precision))

        def rounded(path, leaf):  # the length head and the rejecter head stay in float32
            return leaf.astype(jnp.bfloat16) if {*KEPT}.isdisjoint(key.key for key in path) else leaf

        params = self.params if precision == "float32" else jax.tree_util.tree_map_with_path(rounded, self.params)
        return dataclasses.replace(self, params=params, card=card, origin=self)

    def written_ids(self, source_BS: np.ndarray, shortlist: Shortlist | None) -> np.ndarray | None:
        """The ids that a shortlist allows for a batch; None: all ids."""
        return None if shortlist is None else shortlist.restrict(source_BS, self.card.ids)

    def source_tokens(self, texts: Sequence[str], truncate: bool) -> tuple[list[list[int]], set[int]]:
        """The encoder's input, token lists with `source_prefix` and EOS, and the indices of the texts that were cut.

        Raises:
          PadirError: a text has more tokens than the model takes, and `truncate` is False.
        """
        tokens, truncated = self._tokens(texts, self.longest_source, truncate, "text")
        return [[*self.source_prefix, *each] for each in tokens], truncated

    def target_tokens(self, texts: Sequence[str], truncate: bool) -> tuple[list[list[int]], set[int]]:
        """Token lists with EOS of given targets, and the indices of those that were cut; errors as for sources."""
        return self._tokens(texts, self.card.config.max_length - 1, truncate, "target")

    @property
    def source_prefix(self) -> list[int]:
        """The ids that stand before a source: [LENGTH] if the model predicts lengths with it."""
        return [self.card.ids.length] if self.card.config.length_token else []

    def normalised(self, texts: Sequence[str], kinds: Sequence[str] = ()) -> list[Normalised]:
        """Texts in the form that the model was trained with, and what stands around each; refuses surrogates."""
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise surrogates_error() from None
        if self.card.text_form == "raw":
            return [Normalised(text) for text in texts]
        return [self.tokenizer.normalised(text, kinds) for text in texts]

    def plain_texts(self, texts: Sequence[str]) -> list[Normalised]:
        """Texts in the form of `normalised`, where a text without letters stays a text."""
        pairs = zip(texts, self.normalised(texts), strict=True)
        return [read if read.text else Normalised(composed(text)) for text, read in pairs]

    @property
    def longest_source(self) -> int:
        """Largest number of source tokens, without EOS."""
        config = self.card.config
        return config.geometry.longest_source(config.max_length) - 1

    def _tokens(self, texts: Sequence[str], limit: int, truncate: bool, noun: str) -> tuple[list[list[int]], set[int]]:
        """At most `limit` tokens of each text, and EOS; `noun` names a text in messages.

        Messages quote the text, because its number here may be one in a part of the caller's texts.
        """
        check_process()
        every, truncated = self.tokenizer.encode_batch(texts), set()
        for i, tokens in enumerate(every):
            if len(tokens) > limit:
                if not truncate:
                    what = f"a {noun} has {len(tokens)} tokens, the model takes {limit}"
                    remedy = "split it, or cut it (truncate=True in Python)"
                    raise PadirError(what, got=texts[i], remedy=remedy)
                truncated.add(i)
        return [[*tokens[:limit], EOS] for tokens in every], truncated

    @property
    def precision(self) -> str:
        """Data type of the weights and the matrix products."""
        return "int8" if self.params["token_embedder"]["embedding"].dtype == np.int8 else self.card.config.dtype
