"""`LoadedModel`: parameters on their devices, the model card, and the conversion of text to the encoder's input."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.decoding.program_cache import check_process
from padir.decoding.refine_batch import padded
from padir.decoding.shortlist import Shortlist
from padir.distributed.sharding import DATA, mesh_of, spread
from padir.errors import PadirError
from padir.models.directory import ModelCard
from padir.models.params import KEPT, in_model_dtype, quantise
from padir.models.transformer import Transformer
from padir.text.ids import EOS
from padir.text.marks import Marked, mark
from padir.text.normalise import Normalised, composed
from padir.text.tokenizer import Tokenizer, surrogates_error


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can decode; if several devices hold its parameters, they share the rows of a batch."""

    params: Any
    card: ModelCard
    tokenizer: Tokenizer

    @functools.cached_property
    def model(self) -> Transformer:
        """The module that the parameters belong to."""
        return Transformer(self.card.config, self.card.ids)

    @functools.cached_property
    def converted(self) -> Any:
        """The parameters as programs of decoding read them (`in_model_dtype`), converted once, not in every batch."""
        if self.card.config.dtype == "float32":
            return self.params
        return jax.jit(functools.partial(in_model_dtype, self.card.config))(self.params)

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
        """Pads token lists (`padir.decoding.refine_batch.padded`) to rows that the devices can share equally."""
        return padded(rows, batch_size, 1 if self.mesh is None else self.mesh.shape[DATA], lengths)

    def on_devices(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which programs run on the devices of the parameters."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def side(self, mode: str, precision: str | None = None) -> LoadedModel:
        """The model for a mode of `padir.decoding.options.MODES` and a precision; each is made once and kept.

        int8 rounds the weights to 8 bits. A sentence's translation may then depend on its batch, because a difference
        in the last bits can change the rounding of an activation. bfloat16 is for weights and activations; softmax,
        logits and the length head stay float32.
        """
        key = mode != "refine", precision
        if key not in self._sides:
            made = self._in_precision(precision) if mode == "refine" else self.side("refine", precision)
            if mode != "refine" and not made.card.config.causal:  # the autoregressive side of a dual model
                config = made.card.config.as_causal()
                card = dataclasses.replace(made.card, config=config, corruption=None, strategy=None)
                made = dataclasses.replace(made, card=card)
            self._sides[key] = made
        return self._sides[key]

    @functools.cached_property
    def _sides(self) -> dict[tuple[bool, str | None], LoadedModel]:
        return {}

    def reader(self, task: str) -> LoadedModel:
        """The side that reads finished sentences: the causal one of a dual model whose canvas is no sentence.

        Raises:
          PadirError: the model has no such side, so that it cannot do the task.
        """
        if not self._aligns:
            what = f"a {self.card.config.geometry.name} model cannot {task}, because its canvas is no sentence"
            raise PadirError(what, remedy="take a dual model, whose causal side can")
        return self if self.card.config.geometry.sized_by_target else self.side("causal")

    @property
    def _aligns(self) -> bool:
        return self.card.config.dual or self.card.config.geometry.sized_by_target

    def _in_precision(self, precision: str | None) -> LoadedModel:
        if precision in (None, self.card.config.dtype):
            return self
        if precision == "int8":
            return dataclasses.replace(self, params=jax.jit(quantise)(self.params))
        card = dataclasses.replace(self.card, config=dataclasses.replace(self.card.config, dtype=precision))

        def rounded(path, leaf):  # the length head and the rejecter head stay in float32
            return leaf.astype(jnp.bfloat16) if {*KEPT}.isdisjoint(key.key for key in path) else leaf

        params = self.params if precision == "float32" else jax.tree_util.tree_map_with_path(rounded, self.params)
        return dataclasses.replace(self, params=params, card=card)

    def written_ids(self, source_BS: np.ndarray, shortlist: Shortlist | None) -> np.ndarray | None:
        """The ids that a shortlist allows for a batch; None: all ids."""
        return None if shortlist is None else shortlist.restrict(source_BS, self.card.ids)

    def source_tokens(self, texts: Sequence[str], truncate: bool) -> tuple[list[list[int]], set[int]]:
        """The encoder's input (`tokens`, after [LENGTH] if the model uses it), and indices of cut texts."""
        tokens, truncated = self.tokens(texts, truncate, "text")
        prefix = [self.card.ids.length] if self.card.config.length_token else []
        return [[*prefix, *each] for each in tokens], truncated

    def normalised(self, texts: Sequence[str], kinds: Sequence[str] = ()) -> list[Normalised]:
        """Texts in the form that the model was trained with, and what stands around each; refuses surrogates."""
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise surrogates_error() from None
        if self.card.text_form == "raw":
            return [Normalised(text) for text in texts]
        return [self.tokenizer.normalised(text, kinds) for text in texts]

    def read(self, texts: Sequence[str]) -> list[Normalised]:
        """Texts in the form of `normalised`, where a text without letters stays a text."""
        pairs = zip(texts, self.normalised(texts), strict=True)
        return [read if read.text else Normalised(composed(text)) for text, read in pairs]

    def marked(self, texts: Sequence[str], kinds: Sequence[str]) -> tuple[list[str], list[Marked | None]]:
        """Texts with marks for the spans of `Decoding.placeholders`, and the spans of each text, or None without any.

        A text that has no words beside its spans becomes "".

        Raises:
          PadirError: the model cannot give lost spans their places (`reader`).
        """
        if kinds:
            self.reader("keep words")
        placeholders = self.card.ids.num_placeholders > 0 and self._aligns
        if not kinds and not placeholders:
            return [*texts], [None] * len(texts)
        found = [mark(text, kinds, placeholders) for text in texts]
        return [text if own is None else own.text for text, own in zip(texts, found, strict=True)], found

    @property
    def longest_source(self) -> int:
        """Largest number of source tokens, without EOS."""
        config = self.card.config
        return config.geometry.longest_source(config.max_length) - 1

    def tokens(self, texts: Sequence[str], truncate: bool, name: str) -> tuple[list[list[int]], set[int]]:
        """Token lists with EOS, and the indices of the texts that were cut; `name` is the noun for a text in messages.

        Raises:
          PadirError: a text has more tokens than the model takes, and `truncate` is False.
        """
        check_process()
        limit = self.longest_source if name == "text" else self.card.config.max_length - 1
        every, truncated = self.tokenizer.encode_batch(texts), set()
        for i, tokens in enumerate(every):
            if len(tokens) > limit:
                if not truncate:
                    what = f"{name} {i + 1} has {len(tokens)} tokens, the model takes {limit}"
                    raise PadirError(what, remedy="split it, or cut it (truncate=True in Python)")
                truncated.add(i)
        return [[*tokens[:limit], EOS] for tokens in every], truncated

    @property
    def precision(self) -> str:
        """Data type of the weights and the matrix products."""
        return "int8" if self.params["token_embedder"]["embedding"].dtype == np.int8 else self.card.config.dtype
