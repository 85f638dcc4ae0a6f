"""Data passed between the stages of decoding, and the stage that chooses the best hypothesis."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from padir.decoding.autoregressive import PrefixTrees, score_trees
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import Drafts, padded_length
from padir.decoding.rerank import CausalScore, Hypothesis
from padir.decoding.templates import Template
from padir.decoding.translation import Translation, broken, clean, without_repeats
from padir.distributed.sharding import on_host
from padir.errors import PadirError
from padir.models.encoder import Encoded
from padir.models.transformer import Transformer
from padir.text.ids import EOS, sorted_batches
from padir.text.marks import Marked


@dataclasses.dataclass(frozen=True)
class SourceBatch:
    """Sentences that are decoded together, with the encoder's input for each (`LoadedModel.source_tokens`).

    `target_lengths` are in tokens, EOS included; None to predict them. For a causal model they are length limits.
    `marked` has the spans that must stand in each translation, None for a sentence without any. `templates` has the
    template of each translation; () for none. `cut` is True for sources whose end was cut off; () for none.
    """

    texts: Sequence[str]
    tokens: Sequence[list[int]]
    target_lengths: Sequence[int] | None = None
    marked: Sequence[Marked | None] = ()
    templates: Sequence[Template] = ()
    cut: Sequence[bool] = ()

    def spans(self, b: int) -> Marked | None:
        """The spans that must stand in the translation of sentence b; None without any."""
        return self.marked[b] if self.marked else None

    def repeats(self, b: int) -> frozenset[int]:
        """The ids that the translation of sentence b may repeat, although repeats are dropped (`Template.repeats`)."""
        return self.templates[b].repeats if self.templates else frozenset()


@flax.struct.dataclass
class EncodedBatch:
    """Encoded sentences, on the device, with each decoder layer's keys and values of the encoder's output.

    Rows that only pad the batch come last.
    """

    source: SourceBatch = flax.struct.field(pytree_node=False)
    source_BS: Int[np.ndarray, "B S"]
    encoded: Encoded
    cross_kv: Any


class Written(NamedTuple):
    """Hypotheses of a causal model's search, on the host: N rows for each sentence; rows that pad the batch come last.

    Attributes:
      tokens_BNL, length_BN: target tokens, EOS included, then padding; and their number.
      score_BN: the search's score; -inf for an unfinished row.
      passes_B: decoder passes of each sentence.
    """

    tokens_BNL: Any
    length_BN: Any
    score_BN: Any
    passes_B: Any


def source_batches(
    texts: Sequence[str], tokens: Sequence[list[int]], batch_size: int, **fields: Sequence[Any] | None
) -> Iterator[tuple[list[int], SourceBatch]]:
    """Leaves out empty sentences, sorts the others by length, and yields batches with their places in `texts`.

    The arguments are the fields of `SourceBatch`, for all sentences.
    """
    with_text = (i for i, text in enumerate(texts) if text.strip())
    for some in sorted_batches(with_text, batch_size, lambda i: len(tokens[i])):
        own: dict[str, Any] = {name: [each[i] for i in some] for name, each in fields.items() if each}
        yield some, SourceBatch([texts[i] for i in some], [tokens[i] for i in some], **own)


SHORTEST = 2  # tokens of a target: a sentence with text has at least one token beside EOS


class Candidate(NamedTuple):
    """A draft that decoding tries for a sentence: its length in tokens (EOS included) and the number of its draw.

    `fixed` has the ids that a template holds, 0 for none.
    """

    length: int
    draw: int
    fixed: Sequence[int] = ()


def candidates(lengths: Sequence[int], num_drafts: int, max_length: int) -> list[Candidate]:
    """The drafts that decoding tries for one sentence, most likely length first, without duplicates.

    >>> [each.length for each in candidates([5, 1, 2], num_drafts=1, max_length=4)]
    [4, 2]
    """
    tried = dict.fromkeys(min(max(SHORTEST, length), max_length) for length in lengths)
    return [Candidate(length, draw) for length in tried for draw in range(num_drafts)]


def candidate_rows(
    length_BK: Int[Array, "B K"], num_drafts: int, max_length: int
) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
    """Lengths and draft numbers of every sentence's `candidates` as arrays, for use inside jit; keeps duplicates.

    >>> candidate_rows(jnp.array([[5, 1]]), num_drafts=2, max_length=4)[0].tolist()
    [[4, 4, 2, 2]]
    """
    length_BN = jnp.repeat(jnp.clip(length_BK, SHORTEST, max_length), num_drafts, axis=1)
    draw_N = jnp.tile(jnp.arange(num_drafts), length_BK.shape[1])
    return length_BN, jnp.broadcast_to(draw_N, length_BN.shape)


def choose(
    loaded: LoadedModel,
    decoding: Decoding,
    batch: EncodedBatch,
    tried: Sequence[Sequence[Candidate]],
    drafts: Drafts,
) -> list[Translation]:
    """Ranks each sentence's hypotheses by `Decoding.rerank` and returns the best; of equal scores, the first wins.

    Args:
      tried: the candidates of each sentence.
      drafts: on the host, a row for each candidate; a sentence's further rows only pad the batch. Log-probability -inf
        means that a canvas has no further sentence.
    """
    each = drafts.length_R.size // batch.source_BS.shape[0]
    rows = [[b * each + n for n in range(len(own))] for b, own in enumerate(tried)]
    if not loaded.card.config.geometry.sized_by_target:
        rows = [[row for row in own if row == own[0] or drafts.log_prob_R[row] != -np.inf] for own in rows]
    rule = decoding.rule
    hypotheses = _hypotheses(loaded, decoding, batch, rows, drafts)
    scores = rule(batch.source.texts, hypotheses, target_language=loaded.card.target_language)
    results = []
    for b, score_N in enumerate(scores):
        if not np.isfinite(drafts.log_prob_R[rows[b]]).all():
            raise not_finite()
        source, repeats = batch.source.texts[b], batch.source.repeats(b)
        # What the causal side did not read comes last; ties keep their order.
        order = [(each.again is not None, score) for each, score in zip(hypotheses[b], score_N, strict=True)]
        ranked = sorted(range(len(order)), key=order.__getitem__, reverse=True)
        texts = (
            loaded.tokenizer.decode(draft_tokens(loaded, decoding, *drafts.row(rows[b][n]), repeats), source)
            for n in ranked
        )
        chosen, text = first_whole(zip(ranked, texts, strict=True), source, batch.source.spans(b))
        ranked = [chosen, *(n for n in ranked if n != chosen)]
        best = rows[b][chosen]
        first: dict[str, int] = {}
        for n in ranked:
            first.setdefault(hypotheses[b][n].text, n)
        listed = [*first.values()][: decoding.n_best]
        most = [drafts.row(rows[b][n]) for n in listed or ranked[:1]]
        whole = [draft_tokens(loaded, decoding, *row, whole=True) for row in most]
        results.append(
            Translation(
                text=clean(text, source),
                broken=broken(text, source),
                score=score_N[chosen],
                length=len(whole[0]) + 1,
                passes=int(drafts.passes_R[best]),
                oscillated=bool(drafts.oscillated_R[best]),
                hypotheses=len(score_N),
                read_again=any(each.again is not None for each in hypotheses[b]),
                whole_text=clean(loaded.tokenizer.decode(whole[0], source), source),
                trace=_trace(loaded, decoding, drafts, best),
                candidates=tuple((hypotheses[b][n].text, score_N[n]) for n in listed),
                candidate_lengths=tuple(len(own) + 1 for own in whole[: len(listed)]),
            )
        )
    return results


def first_whole(texts: Iterable[tuple[int, str]], source: str, marked: Marked | None) -> tuple[int, str]:
    """The first hypothesis of the best kind: better without broken characters, and then better with all spans.

    `texts` are numbers and texts, best first.
    """
    best = None
    for each in texts:  # usually the first one will do, so that the others need not be decoded
        faults = broken(each[1], source) > 0, marked is not None and marked.lost(each[1])
        if best is None or faults < best[0]:
            best = faults, each
        if not any(faults):
            break
    assert best is not None
    return best[1]


def not_finite() -> PadirError:
    what = "the model's logits are not finite, so that its output means nothing"
    return PadirError(what, remedy="check its weights, or compute in float32")


def _hypotheses(
    loaded: LoadedModel, decoding: Decoding, batch: EncodedBatch, rows: list[list[int]], drafts: Drafts
) -> list[list[Hypothesis]]:
    """Each sentence's hypotheses; their texts are "" if the rerank rule and the options do not need texts."""
    read = decoding.rule.reads_text or decoding.n_best > 0
    again: dict[int, tuple[float, int]] = {}
    if isinstance(decoding.rule, CausalScore):
        again = _read_again(loaded, decoding, batch, rows, drafts)

    def hypothesis(b: int, row: int) -> Hypothesis:
        made = Hypothesis("", float(drafts.log_prob_R[row]), int(drafts.free_RL[row].sum()))
        if read:
            made = made._replace(
                text=draft_text(loaded, decoding, *drafts.row(row), batch.source.texts[b], batch.source.repeats(b))
            )
        return made._replace(again=again.get(row))

    return [[hypothesis(b, row) for row in own] for b, own in enumerate(rows)]


def _read_again(
    loaded: LoadedModel,
    decoding: Decoding,
    batch: EncodedBatch,
    rows: list[list[int]],
    drafts: Drafts,
) -> dict[int, tuple[float, int]]:
    """`Hypothesis.again` of the rows of sentences with several: a dual model's decoder reads all in one pass."""
    several = {b: own for b, own in enumerate(rows) if len(own) > 1}
    if not several:
        return {}
    # Few sizes of batches, so that few programs are compiled; sentences that devices share stay where they are.
    size = batch.source_BS.shape[0]
    some = [*range(size)]
    if loaded.mesh is None and (room := 1 << (len(several) - 1).bit_length()) < size:
        some = [*several, *[next(iter(several))] * (room - len(several))]
    most = drafts.length_R.size // size
    targets: list[list[list[int]]] = [[[]] * most for _ in some]
    places = {b: some.index(b) for b in several}
    for b, place in places.items():
        repeats = batch.source.repeats(b)
        own = [[*draft_tokens(loaded, decoding, *drafts.row(row), repeats), EOS] for row in several[b]]
        targets[place] = own + [[]] * (most - len(own))
    width = drafts.tokens_RL.shape[1]
    if not loaded.card.config.geometry.sized_by_target:  # a canvas of twice the source, mostly blanks
        # Where targets fit into rows as long as those of sources, fewer programs are compiled.
        longest = max(len(target) for own in targets for target in own)
        width = min(width, padded_length(longest, batch.source_BS.shape[1:]))
    with loaded.on_devices():
        causal = Transformer(loaded.card.config.as_causal(), loaded.model.ids)
        memory = batch.cross_kv, batch.encoded.segment_BS
        if len(some) < size:
            memory = jax.tree.map(lambda x: x[np.array(some)], memory)
        trees = loaded.place(PrefixTrees.of(targets, width))
        log_prob_BN = on_host(score_trees(causal, loaded.converted, *memory, trees, group=width))
    return {
        row: (float(log_prob_BN[place, n]), len(targets[place][n]))
        for b, place in places.items()
        for n, row in enumerate(several[b])
    }


def draft_text(
    loaded: LoadedModel,
    decoding: Decoding,
    tokens_L: Any,
    free_L: Any,
    source: str,
    repeats: frozenset[int] = frozenset(),
) -> str:
    """The text of a draft (`draft_tokens`), cleaned up."""
    return clean(loaded.tokenizer.decode(draft_tokens(loaded, decoding, tokens_L, free_L, repeats), source), source)


def draft_tokens(
    loaded: LoadedModel,
    decoding: Decoding,
    tokens_L: Int[np.ndarray, " L"],
    free_L: Bool[np.ndarray, " L"],
    repeats: frozenset[int] = frozenset(),
    whole: bool = False,
) -> list[int]:
    """The tokens that the readout reads; `Decoding.drop_repeats` removes repeated tokens unless `whole` is True.

    `repeats` are ids that may repeat, beside those that the tokenizer allows.
    """
    if decoding.drops_repeats and not whole:
        return without_repeats(tokens_L, free_L, loaded.tokenizer.copied | repeats)
    return tokens_L[loaded.card.config.geometry.kept(tokens_L, free_L, loaded.model.ids)].tolist()


def _trace(loaded: LoadedModel, decoding: Decoding, drafts: Drafts, row: int):
    """The pieces and log-probabilities of a row's draft and of every step; None if the steps were not traced."""
    if drafts.trace_TRL is None:
        return None
    length, pieces = int(drafts.length_R[row]), loaded.tokenizer.pieces
    tokens_TL, scores_TL = (each_TRL[: decoding.num_steps + 1, row, :length] for each_TRL in drafts.trace_TRL)
    return tuple(
        (tuple(pieces[i] for i in tokens_L), tuple(None if np.isnan(score) else float(score) for score in scores_L))
        for tokens_L, scores_L in zip(tokens_TL, scores_TL, strict=True)
    )
