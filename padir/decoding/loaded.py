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

from padir.decoding.draft import encoder_sum
from padir.decoding.options import Decoding, resolve
from padir.decoding.refine_batch import padded
from padir.distributed.sharding import DATA, mesh_of, spread
from padir.errors import PadirError
from padir.models.card import ModelCard
from padir.models.params import in_model_dtype
from padir.models.quantization import KEPT, quantise
from padir.models.transformer import Transformer
from padir.text.ids import EOS
from padir.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can decode; if its parameters lie on several devices, these devices share the rows of a batch."""

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

    def place(self, rows: Any) -> Any:
        """Spreads arrays [B, ...] over the devices that share the rows; returns them unchanged for one device."""
        if self.mesh is None:
            return rows
        by_row = NamedSharding(self.mesh, PartitionSpec(DATA))
        return jax.tree.map(lambda array: spread(np.asarray(array), by_row), rows)

    def padded(self, rows: Sequence[list[int]], batch_size: int) -> np.ndarray:
        """Pads token lists (`padir.decoding.refine_batch.padded`) to rows that the devices can share equally."""
        return padded(rows, batch_size, 1 if self.mesh is None else self.mesh.shape[DATA])

    def on_devices(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which programs run on the devices of the parameters."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def resolved(self, decoding: Decoding) -> Decoding:
        """Fills in the model's own strategy and canvas, and checks that the options fit the model.

        Raises:
          PadirError: the options do not fit the model.
        """
        if decoding.shortlist is not None:
            decoding.shortlist.check(self.tokenizer)
        if decoding.draft is not None:
            decoding.draft.check(self.tokenizer)
            if self.mesh is not None:
                raise PadirError("a draft is verified on one device: leave the draft or the sharding out")
        return resolve(decoding, self.card.config, self.card.corruption, self.card.strategy)

    def written_ids(self, source_BS: np.ndarray, decoding: Decoding) -> np.ndarray | None:
        """The ids that the shortlist allows for a batch; None: all ids."""
        return None if decoding.shortlist is None else decoding.shortlist.restrict(source_BS, self.card.ids)

    def source_tokens(self, texts: Sequence[str], truncate: bool) -> tuple[list[list[int]], set[int]]:
        """The encoder's input (token lists with EOS, and [LENGTH] if the model uses it), and indices of cut texts.

        Raises:
          PadirError: a text has more tokens than the model takes, and `truncate` is False.
        """
        tokens, truncated = self.tokens(texts, truncate, "text")
        prefix = [self.card.ids.length] if self.card.config.length_token else []
        return [[*prefix, *each] for each in tokens], truncated

    @property
    def longest_source(self) -> int:
        """Largest number of source tokens, without EOS; a CTC model's canvas has two positions for each of them."""
        config = self.card.config
        return config.max_length // 2 - 1 if config.ctc else config.max_length - 1

    def tokens(self, texts: Sequence[str], truncate: bool, name: str) -> tuple[list[list[int]], set[int]]:
        """Token lists with EOS, and the indices of the texts that were cut.

        Args:
          name: the noun for a text in error messages.

        Raises:
          PadirError: a text has more tokens than the model takes, and `truncate` is False.
        """
        limit = self.longest_source if name == "text" else self.card.config.max_length - 1
        every, truncated = self.tokenizer.encode_batch(texts), set()
        for i, tokens in enumerate(every):
            if len(tokens) > limit:
                if not truncate:
                    raise PadirError(
                        f"{name} {i + 1} has {len(tokens)} tokens, the model takes {limit}: split it, or cut it with"
                        " truncate=True"
                    )
                truncated.add(i)
        return [[*tokens[:limit], EOS] for tokens in every], truncated

    @functools.cached_property
    def encoder(self) -> str:
        """Checksum of the encoder (`padir.decoding.draft.encoder_sum`), as a drafter's model has it: converted."""
        return encoder_sum(self.card.config, self.converted)

    @property
    def as_integers(self) -> bool:
        """True if the weights have 8 bits."""
        return self.params["token_embedder"]["embedding"].dtype == np.int8

    def quantised_params(self) -> Any:
        """The parameters with 8-bit weights.

        Raises:
          PadirError: the weights are rounded to 8 bits already.
        """
        self._require_floats()
        return jax.jit(quantise)(self.params)

    def bfloat16_params(self) -> Any:
        """The parameters in bfloat16, except for the length head and the rejecter head, which stay in float32.

        Raises:
          PadirError: the weights are 8-bit.
        """
        self._require_floats()

        def rounded(path, leaf):
            kept = not {*KEPT}.isdisjoint(key.key for key in path)
            return leaf if kept else leaf.astype(jnp.bfloat16)

        return jax.tree_util.tree_map_with_path(rounded, self.params)

    def _require_floats(self) -> None:
        if self.as_integers:
            raise PadirError("the weights are rounded to 8 bits already: start from the model as it was loaded")
