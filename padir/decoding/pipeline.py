"""The stages of decoding a batch; each is a method that takes a plain record and returns the next one.

A model that refines drafts (`RefiningPipeline`):

1. `encode` computes the encoder's output of the sources, once for all candidates.
2. `try_lengths` lists the candidates of each sentence, by its most likely target lengths.
3. `refine` makes a draft of each candidate and refines all drafts in one jitted loop.
4. `padir.decoding.batches.choose` returns each sentence's best draft by `Decoding.rerank`, as text.

A causal model (`CausalPipeline`): `write` encodes and searches from left to right; `read` makes text of the best rows.
`run` takes a batch through all stages, which `stages` yields. The last stage ends with `put_back`, which gives the
spans of `Decoding.placeholders` their places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.alignment import cross_attention, links
from padir.decoding.autoregressive import length_limits, score_targets, score_trees, write_targets
from padir.decoding.batches import (
    Candidate,
    EncodedBatch,
    SourceBatch,
    Written,
    candidates,
    choose,
    first_whole,
    not_finite,
)
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.program_cache import ProgramCache, mappings
from padir.decoding.refine_batch import (
    BUCKET,
    DraftInputs,
    Drafts,
    RefineOptions,
    encode,
    lay_out,
    padded_length,
    refine_drafts,
    rows_together,
)
from padir.decoding.templates import Template
from padir.decoding.translation import TargetScore, Translation, broken, clean
from padir.distributed.sharding import on_host
from padir.errors import PadirError
from padir.models.length import top_lengths
from padir.models.params import in_model_dtype
from padir.refinement.loop import steps
from padir.text.ids import pad_rows, round_up, sorted_batches
from padir.text.marks import Marked

_JITTED = (encode, refine_drafts, write_targets, score_targets, score_trees, cross_attention)
PROGRAMS = ProgramCache(_JITTED, mappings)

_MOST_FORCED = 3  # lost marks of a sentence that are forced, one after the other
_TRACE_ROOM = 4  # the number of traced steps is rounded up to a multiple of this


@dataclasses.dataclass(frozen=True, eq=False)
class RefiningPipeline:
    """The stages of decoding for a model that refines drafts, with options that `resolve` has filled in.

    Attributes:
      counts: allowed numbers of candidates per sentence. Batches are padded to one of these numbers, so that fewer
        shapes are compiled.
      lengths: allowed row lengths, for the same reason; () allows multiples of 8. Rows of drafts are at least as long
        as rows of their sources.
    """

    loaded: LoadedModel
    decoding: Decoding
    trace: bool = False
    counts: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    def run(self, source: SourceBatch) -> list[Translation]:
        """Translates a batch."""
        return [value for _, value in self.stages(source)][-1]

    def stages(self, source: SourceBatch) -> Iterator[tuple[str, Any]]:
        """Translates a batch; yields (stage, its result), whose arrays may not be computed yet."""
        PROGRAMS.make_room()
        batch = self.encode(source)
        yield "encode", batch
        tried = self.try_lengths(batch)
        yield "lengths", tried
        drafts = self.refine(batch, tried)
        yield "refine", drafts
        chosen = choose(self.loaded, self.decoding, batch, tried, drafts)
        yield "choose and detokenise", put_back(self.loaded, self.decoding, chosen, source, batch.source_BS.shape[1:])

    def encode(self, source: SourceBatch) -> EncodedBatch:
        loaded = self.loaded
        source_BS = loaded.padded(source.tokens, self.decoding.batch_size, self.lengths)
        with loaded.on_devices():
            encoded, cross_kv = encode(loaded.model, loaded.converted, loaded.place(source_BS))
        return EncodedBatch(source, source_BS, encoded, cross_kv)

    def try_lengths(self, batch: EncodedBatch) -> list[list[Candidate]]:
        """Lists the candidates of each sentence, for its given target length or for predicted lengths."""
        decoding, given = self.decoding, batch.source.target_lengths
        if given is not None:
            lengths = [[length] for length in given]
        else:
            length_BK = on_host(top_lengths(batch.encoded.length, decoding.num_lengths, decoding.length_window))
            lengths = length_BK[: len(batch.source.tokens)].tolist()
        longest = self.loaded.card.config.max_length
        if not (templates := batch.source.templates):
            return [candidates(each, decoding.num_drafts, longest) * self.decoding.prefix_beam for each in lengths]
        tried = []
        for own, few in zip(templates, lengths, strict=True):
            each_length = candidates([own.length(n) for n in few], decoding.num_drafts, longest)
            # Each way to share out the gaps is a candidate.
            tried.append([each._replace(fixed=row) for each in each_length for row in own.rows(each.length)])
        return tried

    def refine(self, batch: EncodedBatch, tried: Sequence[Sequence[Candidate]]) -> Drafts:
        """Makes a draft of every candidate and refines all drafts; gives them on the host."""
        inputs, options = self._refine_arguments(batch, tried)
        with self.loaded.on_devices():
            return on_host(refine_drafts(self.loaded.model, self.loaded.converted, inputs, **options))

    def refine_memory(self, batch: EncodedBatch, tried: Sequence[Sequence[Candidate]]) -> int | None:
        """Bytes that XLA needs beside the arguments and results of `refine`; None if the backend does not say."""
        inputs, options = self._refine_arguments(batch, tried)
        with self.loaded.on_devices():
            program = refine_drafts.lower(self.loaded.model, self.loaded.converted, inputs, **options).compile()
        return getattr(program.memory_analysis(), "temp_size_in_bytes", None)

    def steps(self, source: SourceBatch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields tokens_L and score_L of one sentence: its draft of the most likely length, then after each pass."""
        if self.decoding.shortlist is not None:
            raise PadirError("steps cannot be shown with a shortlist", remedy="leave the shortlist out")
        loaded, batch = self.loaded, self.encode(source)
        inputs, how = self._refine_arguments(batch, [own[:1] for own in self.try_lengths(batch)])
        options, length = how["options"], int(inputs.length_BN[0, 0])
        inputs = jax.tree.map(jnp.asarray, inputs)
        with loaded.on_devices():
            params = in_model_dtype(loaded.model.config, loaded.converted)
            begun = lay_out(loaded.model, params, inputs, options, how["seed"], how["blank_penalty"])
            states = steps(*begun, options.strategy, num_steps=how["num_steps"])
        while True:
            with loaded.on_devices():  # but not between two steps
                state = next(states, None)
            if state is None:
                return
            yield on_host((state.canvas.tokens_BL[0, :length], state.canvas.score_BL[0, :length]))

    def predict_lengths(self, tokens: Sequence[list[int]], k: int) -> list[list[int]]:
        """The k most likely target lengths of each sentence, most likely first, in tokens, EOS included."""
        results: list[list[int]] = [[] for _ in tokens]
        for some in sorted_batches(range(len(tokens)), self.decoding.batch_size, lambda i: len(tokens[i])):
            batch = SourceBatch([""] * len(some), [tokens[i] for i in some])
            length_BK = on_host(top_lengths(self.encode(batch).encoded.length, k))
            for i, length_K in zip(some, length_BK.tolist(), strict=False):
                results[i] = length_K
        return results

    def _refine_arguments(
        self, batch: EncodedBatch, tried: Sequence[Sequence[Candidate]]
    ) -> tuple[DraftInputs, dict[str, Any]]:
        """The arguments of `refine_drafts` after the model and its parameters."""
        decoding, loaded = self.decoding, self.loaded
        assert decoding.strategy is not None and decoding.canvas is not None
        rows = batch.source_BS.shape[0]
        if self.decoding.prefix_beam > 1:  # all candidates of a sentence are read out of one canvas
            tried = [own[:1] for own in tried]
        most = max(map(len, tried))
        most = min((count for count in self.counts if count >= most), default=most)
        # A sentence with fewer candidates than others repeats its first one, as do rows that pad the batch.
        table = [[*own, *[own[0]] * (most - len(own))] for own in tried]
        table += [table[0]] * (rows - len(table))
        length_BN, draw_BN = (np.array([[each[i] for each in own] for own in table], np.int32) for i in (0, 1))
        longest = max(int(length_BN.max()), batch.source_BS.shape[1] if self.lengths else 0)
        length = min(padded_length(longest, self.lengths), loaded.card.config.max_length)
        by_sentence = loaded.place((batch.source_BS, length_BN, draw_BN))
        fixed_RL = None
        if batch.source.templates:
            fixed_RL = loaded.place(pad_rows([[*each.fixed] for own in table for each in own], length))
        options = RefineOptions(
            max_target_length=length,
            strategy=decoding.strategy,
            corruption=decoding.canvas,
            # Several devices use no groups: groups take rows from all over the batch, so the devices would have to
            # exchange rows at every step.
            rows_at_once=rows_together(length, loaded.platform) if loaded.mesh is None else None,
            # The trace has room for a few more steps, so that similar numbers of steps share a program.
            traced_steps=round_up(decoding.num_steps, _TRACE_ROOM) if self.trace else None,
            beam=self.decoding.prefix_beam,
        )
        return DraftInputs(batch.cross_kv, batch.encoded.segment_BS, *by_sentence, fixed_RL=fixed_RL), {
            "options": options,
            "num_steps": decoding.num_steps,
            "seed": decoding.seed,
            "blank_penalty": decoding.blank_penalty,
            "kept_v": loaded.written_ids(batch.source_BS, decoding.shortlist),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class CausalPipeline:
    """The stages of decoding for a model that writes from left to right, with options that `resolve` has filled in.

    `lengths` are allowed lengths of source rows; () allows multiples of 8.
    """

    loaded: LoadedModel
    decoding: Decoding
    lengths: tuple[int, ...] = ()

    def run(self, source: SourceBatch) -> list[Translation]:
        """Translates a batch."""
        return [value for _, value in self.stages(source)][-1]

    def stages(self, source: SourceBatch) -> Iterator[tuple[str, Any]]:
        """Translates a batch; yields (stage, its result)."""
        PROGRAMS.make_room()
        written = self.write(source)
        yield "encode and write", written
        yield "detokenise", put_back(self.loaded, self.decoding, self.read(source, written), source, self.lengths)

    def write(self, source: SourceBatch) -> Written:
        """Encodes the sources and searches for their translations."""
        loaded, decoding, limits = self.loaded, self.decoding, source.target_lengths
        max_length = loaded.card.config.max_length
        source_BS = loaded.padded(source.tokens, decoding.batch_size, self.lengths)
        rows = source_BS.shape[0]
        if limits is None:
            (longest,) = length_limits([source_BS.shape[1]], max_length)
            limits = length_limits([len(tokens) for tokens in source.tokens], max_length)
            if source.templates:  # what follows a prefix has room for a whole translation
                pairs = zip(limits, source.templates, strict=True)
                limits = [min(limit + each.least, max_length) for limit, each in pairs]
                longest = min(1 << (max(limits) - 1).bit_length(), max_length)  # few programs
        else:
            longest = min(round_up(max(limits), BUCKET), max_length)
        limit_B = np.array([*limits, *[2] * (rows - len(limits))], np.int32)  # rows that pad the batch end at once
        options: dict[str, Any] = {"search": decoding.search, "max_length": longest, "seed": decoding.seed}
        options["kept_v"] = loaded.written_ids(source_BS, decoding.shortlist)
        if source.templates:
            prefixes = [[*(each.prefix or ())] for each in source.templates]
            options["prefix_BL"] = loaded.place(pad_rows(prefixes, longest, rows))
        inputs = loaded.place((source_BS, limit_B))
        with loaded.on_devices():
            written, score_BN, passes_B = write_targets(loaded.model, loaded.converted, *inputs, **options)
        return on_host(Written(written.tokens_BNL, written.length_BN, score_BN, passes_B))

    def read(self, source: SourceBatch, written: Written) -> list[Translation]:
        """Returns the best row of each sentence as text."""
        results = []
        for b, text_of in enumerate(source.texts):
            score_N, length_N = written.score_BN[b], written.length_BN[b]
            ranked = [int(n) for n in np.argsort(-score_N, kind="stable") if np.isfinite(score_N[n])]
            if not ranked:
                raise not_finite()

            def read(n: int, b: int = b, length_N: Any = length_N, text_of: str = text_of) -> str:
                return self.loaded.tokenizer.decode(written.tokens_BNL[b, n, : length_N[n] - 1].tolist(), text_of)

            best, text = first_whole(((n, read(n)) for n in ranked), text_of, source.spans(b))
            results.append(
                Translation(
                    text=clean(text, text_of),
                    broken=broken(text, text_of),
                    score=float(score_N[best]),
                    length=int(length_N[best]),
                    passes=int(written.passes_B[b]),
                    hypotheses=written.score_BN.shape[1],
                )
            )
        return results

    def score(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[TargetScore]:
        """Log-probability of each target (a token list with EOS) given its source, in one teacher-forced pass."""
        loaded, batch_size = self.loaded, self.decoding.batch_size
        results = [TargetScore(0.0, 0)] * len(sources)
        for some in sorted_batches(range(len(sources)), batch_size, lambda i: (len(sources[i]), len(targets[i]))):
            PROGRAMS.make_room()
            sides = tuple(loaded.padded([side[i] for i in some], batch_size) for side in (sources, targets))
            with loaded.on_devices():
                log_prob_BL = score_targets(loaded.model, loaded.converted, *loaded.place(sides))
            for i, log_prob in zip(some, on_host(log_prob_BL.sum(-1)).tolist(), strict=False):
                if np.isnan(log_prob):
                    raise not_finite()
                results[i] = TargetScore(log_prob, len(targets[i]))
        return results


Pipeline = RefiningPipeline | CausalPipeline


def put_back(
    loaded: LoadedModel,
    decoding: Decoding,
    results: Sequence[Translation],
    source: SourceBatch,
    lengths: Sequence[int],
) -> list[Translation]:
    """The translations with the spans of their sources in place of marks; lost spans get their places (`links`).

    Args:
      results: the translations, whose texts have marks.
      lengths: allowed lengths of the rows of sources.
    """
    finished = [*results]
    marked = {b: own for b in range(len(finished)) if (own := source.spans(b)) is not None}
    if not marked:
        return finished
    if source.target_lengths is None and (loaded.card.config.causal or loaded.card.config.dual):
        finished = _forced(loaded, decoding, results, source, marked, lengths)
    texts = {b: [finished[b].text, *(text for text, _ in finished[b].candidates)] for b in marked}
    placed = ((b, text) for b, own in marked.items() for text in texts[b] if own.lost(text) or "" in own.marks)
    placed = [*dict.fromkeys(placed)]
    linked = links(loaded, [(source.texts[b], text) for b, text in placed], decoding.batch_size, lengths)
    numbers = dict(zip(placed, linked, strict=True))
    for b, own in marked.items():

        def put(text: str, b: int = b, own: Marked = own) -> str:
            return clean(own.finished(text, numbers.get((b, text))), own.original)

        finished[b] = finished[b].rewritten(put)
    return finished


def _forced(
    loaded: LoadedModel,
    decoding: Decoding,
    results: Sequence[Translation],
    source: SourceBatch,
    marked: Mapping[int, Marked],
    lengths: Sequence[int],
) -> list[Translation]:
    """The results; those that lack marks are written again from left to right, and win if they have fewer faults then.

    The translation up to the place of its first missing mark, and this mark, are the prefix.
    """
    side = loaded.side("causal")
    pipeline = CausalPipeline(side, decoding.without("shortlist"), (*lengths,))
    room = side.card.config.max_length - 2  # a token and EOS follow
    made = [*results]
    # The end of a source that was cut has marks that no model read.
    whole = [b for b in marked if not (source.cut and source.cut[b])]
    places = [b for b in whole if marked[b].missing(made[b].text)]
    for _ in range(_MOST_FORCED):
        if not places:
            break
        texts, before = [source.texts[b] for b in places], [made[b].text for b in places]
        tokens, spans = [source.tokens[b] for b in places], [marked[b] for b in places]
        linked = links(loaded, [*zip(texts, before, strict=True)], decoding.batch_size, lengths)
        begun = [own.begun(text, numbers) for own, text, numbers in zip(spans, before, linked, strict=True)]
        templates = [Template((tuple(side.tokenizer.encode(text)[:room]), 0)) for text in begun]
        batch = SourceBatch(texts, tokens, marked=spans, templates=templates)
        left = []
        for b, again in zip(places, pipeline.read(batch, pipeline.write(batch)), strict=True):
            own, passes = marked[b], made[b].passes + again.passes
            if own.faults(again.text) < own.faults(made[b].text):
                made[b] = _in_place(made[b], again, decoding.n_best)
                left += [b] if own.missing(again.text) else []
            made[b] = dataclasses.replace(made[b], passes=passes)
        places = left
    return made


def _in_place(result: Translation, again: Translation, n_best: int) -> Translation:
    """A translation that was written again, before the other candidates; the trace is of the former one, and goes."""
    return dataclasses.replace(
        again,
        candidates=((again.text, again.score), *result.candidates)[:n_best],
        candidate_lengths=(again.length, *result.candidate_lengths)[:n_best],
    )
