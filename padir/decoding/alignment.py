"""Word alignments from the cross-attention of one decoder pass over finished translations.

The weight of a target token and a source token is the mean cross-attention over all heads of the decoder.
Tokens are joined to words and punctuation marks (`padir.text.placing.units`), and each target unit is linked to the
source unit of the greatest summed weight. A source unit without a link takes over a target unit from its present source
unit on two conditions: the target unit's weight for it is more than half of its greatest, and the present source unit
has a stronger link to another target unit.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from padir.decoding.encoding import padded_length
from padir.decoding.loaded import LoadedModel
from padir.decoding.program_cache import PROGRAMS
from padir.distributed.sharding import on_host
from padir.models.transformer import Transformer
from padir.text.ids import pad_rows, sorted_batches
from padir.text.placing import UNSPACED, units
from padir.text.tokenizer import Tokenizer

_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def words(text: str) -> list[tuple[int, int]]:
    """Begin and end of each word between spaces, punctuation included, and of each Chinese or Japanese character.

    >>> words("It's 我们 5.")
    [(0, 4), (5, 6), (6, 7), (8, 10)]
    """
    return [match.span() for match in _WORD.finditer(text)]


@PROGRAMS.add
@functools.partial(jax.jit, static_argnums=0)
def cross_attention(
    model: Transformer,
    params: Any,
    tokens_BL: Int[Array, "B L"] | np.ndarray,
    cross_kv: Any,
    source_segment_BS: Int[Array, "B S"],
) -> Float[Array, "B L S"]:
    """The mean cross-attention over the heads of all decoder layers, when the model reads translations.

    Args:
      tokens_BL: one translation for each source, with EOS, then padding.
      cross_kv, source_segment_BS: as in `Transformer.draft_states`.
    """
    method = "target_states" if model.config.causal else "draft_states"
    tokens_BL = jnp.asarray(tokens_BL)
    _, sown = model.apply(
        {"params": params},
        tokens_BL,
        (tokens_BL > 0).astype(jnp.int32),
        cross_kv,
        source_segment_BS,
        method=method,
        mutable=["intermediates"],
    )
    layers: Any = [sown["intermediates"]["decoder"][f"layers_{i}"] for i in range(model.config.decoder_layers)]
    return jnp.stack([layer["encoder_decoder_attention"]["attn_BHLS"][0].mean(1) for layer in layers]).mean(0)


def links(
    loaded: LoadedModel,
    pairs: Sequence[tuple[str, str]],
    batch_size: int,
    lengths: Sequence[int] = (),
    truncate: bool = True,
) -> list[list[int]]:
    """For each unit of each target, the number of the source's unit that it translates; -1 for none.

    Args:
      pairs: a source and a target each.
      lengths: allowed lengths of the rows of sources; () allows those of `padded_length`.
      truncate: leave the end of a text that is too long without links instead of raising an error.

    Raises:
      PadirError: the model's canvas is no sentence, and it cannot write from left to right.
    """
    loaded = loaded.sentence_side("align words")
    first = len(loaded.source_prefix)
    sources, _ = loaded.source_tokens([source for source, _ in pairs], truncate)
    targets, _ = loaded.target_tokens([target for _, target in pairs], truncate)
    found: list[list[int]] = [[] for _ in pairs]
    for some in sorted_batches(range(len(pairs)), batch_size, lambda i: (len(sources[i]), len(targets[i]))):
        batch = loaded.encode([sources[i] for i in some], batch_size, lengths)
        num_rows, width = batch.source_BS.shape
        # Where targets fit into rows as long as those of sources, fewer programs are compiled.
        longest = padded_length(max(len(targets[i]) for i in some), [width])
        target_BL = pad_rows([targets[i] for i in some], min(longest, loaded.card.config.max_length), num_rows)
        with loaded.on_devices():
            weight_BLS = cross_attention(
                loaded.model,
                loaded.converted,
                loaded.place(target_BL),
                batch.cross_kv,
                batch.encoded.segment_BS,
            )
        for weight_LS, i in zip(on_host(weight_BLS), some, strict=False):
            source, target = sources[i][first:-1], targets[i][:-1]
            weight_LS = weight_LS[: len(target), first : first + len(source)]
            of_source, of_target = (
                _by_unit(loaded.tokenizer, units(text), tokens)
                for text, tokens in zip(pairs[i], (source, target), strict=True)
            )
            found[i] = _links_of(of_target @ weight_LS @ of_source.T)
    return found


def align_words(
    loaded: LoadedModel, sources: Sequence[str], targets: Sequence[str], batch_size: int, truncate: bool
) -> list[list[tuple[int, int]]]:
    """Links between the words of sentence pairs (`Translator.align`), which the model reads in plain form."""
    pairs = [*zip(loaded.plain_texts(sources), loaded.plain_texts(targets), strict=True)]
    found = links(loaded, [(source.text, target.text) for source, target in pairs], batch_size, (), truncate)
    aligned = []
    for (source, target), own in zip(pairs, found, strict=True):
        linked = word_links(source.text, target.text, own)
        aligned.append([(s + source.words_before, t + target.words_before) for s, t in linked])
    return aligned


def word_links(source: str, target: str, own: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers of linked words of both sides, from the links of units: the first linked unit of a target word counts.

    >>> word_links("Das Buch.", "The book.", [0, 1, 0])
    [(0, 0), (1, 1)]
    """
    of_source = _words_of_units(source)
    of_target = _words_of_units(target)
    found: dict[int, int] = {}
    for t, s in enumerate(own):
        if s >= 0:
            found.setdefault(of_target[t], of_source[s])
    return [(s, t) for t, s in found.items()]


def _words_of_units(text: str) -> list[int]:
    """The number of the word that each unit stands in."""
    ends = [end for _, end in words(text)]
    return [bisect.bisect_right(ends, begin) for begin, _ in units(text)]


def _links_of(weight_tu: np.ndarray) -> list[int]:
    """The source unit of each target unit, -1 for none.

    >>> _links_of(np.array([[0.3, 0.5], [0.1, 0.8]]))  # der Vertrag, the agreement
    [0, 1]
    """
    if not weight_tu.size:
        return [-1] * len(weight_tu)
    best = np.where(weight_tu.any(-1), weight_tu.argmax(-1), -1)
    for u in sorted({*range(weight_tu.shape[1])} - {*best.tolist()}):  # without a link
        t = weight_tu[:, u].argmax()
        own = weight_tu[t, best[t]]
        if weight_tu[t, u] > own / 2 and own < weight_tu[best == best[t], best[t]].max():
            best[t] = u
    return best.tolist()


def _ends(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The number of characters that the tokens up to each token decode to."""
    found, last = [], 0
    for i in range(1, len(tokens) + 1):
        last = max(last, len(tokenizer.decode(tokens[:i]).rstrip("\ufffd")))
        found.append(last)
    return found


def _by_unit(tokenizer: Tokenizer, found: Sequence[tuple[int, int]], tokens: Sequence[int]) -> np.ndarray:
    """1 where a token has characters of a unit, [units, tokens]."""
    end_L = _ends(tokenizer, tokens)
    begin_L = [0, *end_L[:-1]]
    overlaps = [
        [first < end and begin < max(last, first + 1) for first, last in zip(begin_L, end_L, strict=True)]
        for begin, end in found
    ]
    return np.array(overlaps, np.float32).reshape(len(found), len(tokens))
