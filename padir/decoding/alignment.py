"""Word alignments from the cross-attention of one decoder pass over finished translations.

The weight of a target token and a source token is the mean cross-attention over the heads of the decoder's last layer.
Tokens are joined to words and punctuation marks (`padir.text.marks.units`), and each target unit is linked to the
source unit of the greatest summed weight.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from padir.decoding.loaded import LoadedModel
from padir.decoding.refine_batch import encode, padded_length
from padir.distributed.sharding import on_host
from padir.errors import PadirError
from padir.models.transformer import Transformer
from padir.text.ids import pad_rows, sorted_batches
from padir.text.marks import UNSPACED, units
from padir.text.tokenizer import Tokenizer

_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


@functools.partial(jax.jit, static_argnums=0)
def cross_attention(
    model: Transformer,
    params: Any,
    tokens_BL: Int[Array, "B L"] | np.ndarray,
    cross_kv: Any,
    source_segment_BS: Int[Array, "B S"],
) -> Float[Array, "B L S"]:
    """The mean cross-attention over the heads of the last decoder layer, when the model reads translations.

    Args:
      tokens_BL: one translation for each source, with EOS, then padding; or the canvas, if it holds more.
      cross_kv, source_segment_BS: as in `Transformer.decode`.
    """
    method = "target_states" if model.config.causal else "draft_states"
    inputs = jnp.asarray(tokens_BL), (jnp.asarray(tokens_BL) > 0).astype(jnp.int32), cross_kv, source_segment_BS
    _, sown = model.apply({"params": params}, *inputs, method=method, mutable=["intermediates"])
    layers: Any = sown["intermediates"]["decoder"]
    return layers[f"layers_{model.config.decoder_layers - 1}"]["encoder_decoder_attention"]["attn_BHLS"][0].mean(1)


class Read(NamedTuple):
    """A finished translation: the tokens that the decoder reads, EOS included, and the places of those that count."""

    tokens: Sequence[int]
    kept: Sequence[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Aligner:
    """Links the translations of a batch to their sources; the decoder reads them when the first link is asked for.

    Attributes:
      sources: tokens of each source, as the encoder reads them.
      read: the translations.
      memory: gives cross-attention keys and values of the sources, and their segment ids.
    """

    loaded: LoadedModel
    sources: Sequence[Sequence[int]]
    read: Sequence[Read]
    memory: Callable[[], tuple[Any, Any]]

    @functools.cached_property
    def _attention_BLS(self) -> np.ndarray:
        cross_kv, segment_BS = self.memory()
        longest = padded_length(max(len(each.tokens) for each in self.read))
        longest = min(longest, self.loaded.card.config.max_length)
        tokens_BL = pad_rows([[*each.tokens] for each in self.read], longest, segment_BS.shape[0])
        with self.loaded.on_devices():
            inputs = self.loaded.place(tokens_BL), cross_kv, segment_BS
            return on_host(cross_attention(self.loaded.model, self.loaded.converted, *inputs))

    def links(self, b: int, source: str, target: str, cut: Callable[[str], list[tuple[int, int]]] = units) -> list[int]:
        """For each unit of a translation, the number of the source's unit with the greatest weight; -1 without weight.

        Args:
          source, target: the texts that the tokens of sentence b decode to.
          cut: gives the begin and end of each unit of a text.
        """
        first = 1 if self.loaded.card.config.length_token else 0
        own, (tokens, kept) = self.sources[b][first:-1], self.read[b]
        weight_LS = self._attention_BLS[b, list(kept), first : first + len(own)]
        tokenizer = self.loaded.tokenizer
        unit_tL = _by_unit(tokenizer, cut(target), [tokens[i] for i in kept])
        weight_tu = unit_tL @ weight_LS @ _by_unit(tokenizer, cut(source), own).T
        if not weight_tu.size:
            return [-1] * len(weight_tu)
        return np.where(weight_tu.any(-1), weight_tu.argmax(-1), -1).tolist()


def words(text: str) -> list[tuple[int, int]]:
    """Begin and end of each word between spaces, punctuation included, and of each Chinese or Japanese character.

    >>> words("It's 我们 5.")
    [(0, 4), (5, 6), (6, 7), (8, 10)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def align(
    loaded: LoadedModel,
    texts: Sequence[tuple[str, str]],
    tokens: Sequence[tuple[list[int], list[int]]],
    batch_size: int,
    cut: Callable[[str], list[tuple[int, int]]] = words,
) -> list[list[tuple[int, int]]]:
    """Links (source word, target word) of sentence pairs, in the order of the target; `cut` gives the words.

    Args:
      tokens: the encoder's input for each source, and the tokens of each target with EOS.
    """
    config = loaded.card.config
    refines = not config.causal and config.readout.sized_by_target
    if not (refines or config.causal or config.dual):
        what = f"a {config.readout.name} model cannot align words, because its canvas is no sentence"
        raise PadirError(what, remedy="take another model")
    loaded = loaded.side("refine" if refines else "causal")
    found: list[list[tuple[int, int]]] = [[] for _ in texts]
    with_text = (i for i, pair in enumerate(texts) if all(map(str.strip, pair)))
    for some in sorted_batches(with_text, batch_size, lambda i: (len(tokens[i][0]), len(tokens[i][1]))):
        sources = [tokens[i][0] for i in some]

        def memory(sources: Sequence[list[int]] = sources) -> tuple[Any, Any]:
            with loaded.on_devices():
                source_BS = loaded.place(loaded.padded(sources, batch_size))
                encoded, cross_kv = encode(loaded.model, loaded.converted, source_BS)
            return cross_kv, encoded.segment_BS

        read = [Read(tokens[i][1], range(len(tokens[i][1]) - 1)) for i in some]
        aligner = Aligner(loaded, sources, read, memory)
        for b, i in enumerate(some):
            links = aligner.links(b, *texts[i], cut=cut)
            found[i] = [(source, target) for target, source in enumerate(links) if source >= 0]
    return found


def ends(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The number of characters that the tokens up to each token decode to."""
    found, last = [], 0
    for i in range(1, len(tokens) + 1):
        last = max(last, len(tokenizer.decode(tokens[:i]).rstrip("\ufffd")))
        found.append(last)
    return found


def _by_unit(tokenizer: Tokenizer, found: Sequence[tuple[int, int]], tokens: Sequence[int]) -> np.ndarray:
    """1 where a token has characters of a unit, [units, tokens]."""
    end_L = ends(tokenizer, tokens)
    begin_L = [0, *end_L[:-1]]
    overlaps = [
        [first < end and begin < max(last, first + 1) for first, last in zip(begin_L, end_L, strict=True)]
        for begin, end in found
    ]
    return np.array(overlaps, np.float32).reshape(len(found), len(tokens))
