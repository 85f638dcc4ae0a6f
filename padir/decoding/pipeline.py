"""The stages of decoding a batch; each stage is a method whose argument is the result of the stage before.

A model that refines drafts (`RefiningPipeline`):

1. `encode` computes the encoder's output of the sources, once for all candidates.
2. `try_lengths` lists the candidates of each sentence, by its most likely target lengths.
3. `refine` makes a draft of each candidate and refines all drafts in one jitted loop.
4. `choose` returns each sentence's best draft by `Decoding.rerank`, as text.

A causal model (`CausalPipeline`): `write` encodes and searches from left to right, `read` makes text of the best rows.

`run` takes a batch through all stages; an observer can time or inspect each stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from padir.decoding.autoregressive import SearchInputs, length_limits, score_drafts, score_targets, write_targets
from padir.decoding.batches import CandidateBatch, EncodedBatch, RefinedBatch, SourceBatch, WrittenBatch
from padir.decoding.choice import choose
from padir.decoding.lengths import candidates
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.program_cache import ProgramCache, mappings
from padir.decoding.refine_batch import (
    BUCKET,
    DraftInputs,
    Drafts,
    RefineOptions,
    encode,
    pseudo_likelihoods,
    refine_drafts,
    rows_together,
)
from padir.decoding.rerank import PseudoLikelihood
from padir.decoding.text import one_line
from padir.decoding.translation import TargetScore, Translation
from padir.decoding.verified import VerifyOptions, write_verified
from padir.distributed.sharding import on_host
from padir.models.length import top_lengths
from padir.text.batches import sorted_batches
from padir.text.ids import round_up

PROGRAMS = ProgramCache(
    (encode, refine_drafts, pseudo_likelihoods, write_targets, write_verified, score_targets, score_drafts), mappings
)

Observer = Callable[[str, Any], None]
"""Callback (stage, value) at the end of each stage; the value's arrays may not be computed yet."""

_TRACE_ROOM = 4  # the number of traced steps is rounded up to a multiple of this


def unobserved(stage: str, value: Any) -> None:
    """Observer that ignores the stages."""


@dataclasses.dataclass(frozen=True, eq=False)
class RefiningPipeline:
    """The stages of decoding for a model that refines drafts.

    Attributes:
      decoding: options that `resolve` has filled in for the model.
      trace: keep every step of the drafts.
      counts: allowed numbers of candidates per sentence. A batch is filled up to one of them, so that fewer shapes are
        compiled.
    """

    loaded: LoadedModel
    decoding: Decoding
    trace: bool = False
    counts: tuple[int, ...] = ()

    def run(self, batch: SourceBatch, observe: Observer = unobserved) -> list[Translation]:
        """Translates a batch; the stages are "encode", "lengths", "refine" and "choose and detokenise"."""
        PROGRAMS.make_room()
        results = self.choose(self.run_to_drafts(batch, observe))
        observe("choose and detokenise", results)
        return results

    def run_to_drafts(self, batch: SourceBatch, observe: Observer = unobserved) -> RefinedBatch:
        """Takes a batch through the stages up to "refine"."""
        encoded = self.encode(batch)
        observe("encode", encoded)
        tried = self.try_lengths(encoded)
        observe("lengths", tried)
        refined = self.refine(tried)
        observe("refine", refined)
        return refined

    def encode(self, batch: SourceBatch) -> EncodedBatch:
        """Encodes the sources."""
        loaded = self.loaded
        source_BS = loaded.padded(batch.tokens, self.decoding.batch_size)
        with loaded.on_devices():
            encoded, cross_kv = encode(loaded.model, loaded.converted, loaded.place(source_BS))
        return EncodedBatch(batch, source_BS, encoded, cross_kv)

    def try_lengths(self, batch: EncodedBatch) -> CandidateBatch:
        """Lists the candidates of each sentence, for its given target length or for predicted lengths.

        Raises:
          PadirError: the length head gives no length, or fewer than `LengthSearch.top_k`.
        """
        decoding, given = self.decoding, batch.source.target_lengths
        if given is not None:
            lengths = [[length] for length in given]
        else:
            length_BK, _ = on_host(top_lengths(batch.encoded.length, decoding.lengths.top_k, decoding.lengths.adjacent))
            lengths = length_BK[: len(batch.source.tokens)].tolist()
        longest = self.loaded.card.config.max_length
        return CandidateBatch(batch, [candidates(each, decoding.lengths, longest) for each in lengths])

    def refine(self, tried: CandidateBatch) -> RefinedBatch:
        """Makes a draft of every candidate and refines all drafts."""
        (inputs, options), decoding = self._refine_arguments(tried), self.decoding
        with self.loaded.on_devices():
            drafts = refine_drafts(self.loaded.model, self.loaded.converted, inputs, **options)
            pseudo_R = self._pseudo(inputs, drafts) if isinstance(decoding.rerank, PseudoLikelihood) else None
            return RefinedBatch(tried, *on_host((drafts, pseudo_R)))

    def _pseudo(self, inputs: DraftInputs, drafts: Drafts) -> Any:
        """Pseudo-likelihood of every row of the drafts (`pseudo_likelihoods`)."""
        kept = (jnp.take_along_axis(each, drafts.kept_BN, axis=1) for each in (inputs.length_BN, inputs.draw_BN))
        inputs = inputs._replace(**dict(zip(("length_BN", "draw_BN"), kept, strict=True)))
        noise = {"corruption": self.decoding.canvas, "seed": self.decoding.seed}
        return pseudo_likelihoods(self.loaded.model, self.loaded.converted, inputs, drafts.tokens_RL, **noise)

    def refine_memory(self, tried: CandidateBatch) -> int | None:
        """Bytes that XLA needs beside the arguments and results of `refine`; None if the backend does not say."""
        inputs, options = self._refine_arguments(tried)
        with self.loaded.on_devices():
            program = refine_drafts.lower(self.loaded.model, self.loaded.converted, inputs, **options).compile()
        return getattr(program.memory_analysis(), "temp_size_in_bytes", None)

    def choose(self, refined: RefinedBatch) -> list[Translation]:
        """Returns each sentence's best hypothesis as text (`padir.decoding.choice.choose`)."""
        return choose(self.loaded, self.decoding, refined)

    def predict_lengths(self, tokens: Sequence[list[int]], k: int) -> list[list[int]]:
        """The k most likely target lengths of each sentence, most likely first, in tokens, EOS included."""
        results: list[list[int]] = [[] for _ in tokens]
        for some in sorted_batches(range(len(tokens)), self.decoding.batch_size, lambda i: len(tokens[i])):
            batch = SourceBatch([""] * len(some), [tokens[i] for i in some])
            length_BK, _ = on_host(top_lengths(self.encode(batch).encoded.length, k))
            for i, length_K in zip(some, length_BK.tolist(), strict=False):
                results[i] = length_K
        return results

    def _refine_arguments(self, tried: CandidateBatch) -> tuple[DraftInputs, dict[str, Any]]:
        """The arguments of `refine_drafts` after the model and its parameters."""
        decoding, batch, loaded = self.decoding, tried.batch, self.loaded
        assert decoding.strategy is not None and decoding.canvas is not None
        rows = batch.source_BS.shape[0]
        most = max(map(len, tried.candidates))
        most = min((count for count in self.counts if count >= most), default=most)
        # A sentence with fewer candidates than others repeats its first one, as do rows that pad the batch.
        table = [own + [own[0]] * (most - len(own)) for own in tried.candidates]
        table += [table[0]] * (rows - len(table))
        length_BN, draw_BN = np.moveaxis(np.array(table, np.int32), -1, 0)
        length = min(round_up(int(length_BN.max()), BUCKET), loaded.card.config.max_length)
        by_sentence = loaded.place((batch.source_BS, length_BN, draw_BN))
        options = RefineOptions(
            max_target_length=length,
            strategy=decoding.strategy,
            corruption=decoding.canvas,
            prune=None if self.trace else decoding.prune,
            # Several devices use no groups: groups take rows from all over the batch, so the devices would have to
            # exchange rows at every step.
            rows_at_once=rows_together(length) if loaded.mesh is None else None,
            # The trace has room for a few more steps, so that similar numbers of steps share a program.
            traced_steps=round_up(decoding.num_steps, _TRACE_ROOM) if self.trace else None,
        )
        return DraftInputs(batch.cross_kv, batch.encoded.segment_BS, *by_sentence), {
            "options": options,
            "num_steps": decoding.num_steps,
            "seed": decoding.seed,
            "kept_v": loaded.written_ids(batch.source_BS, decoding),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class CausalPipeline:
    """The stages of decoding for a causal model.

    Attributes:
      decoding: options that `resolve` has filled in for the model.
    """

    loaded: LoadedModel
    decoding: Decoding

    def run(self, batch: SourceBatch, observe: Observer = unobserved) -> list[Translation]:
        """Translates a batch; the stages are "encode and write" and "detokenise"."""
        PROGRAMS.make_room()
        written = self.write(batch)
        observe("encode and write", written)
        results = self.read(written)
        observe("detokenise", results)
        return results

    def write(self, batch: SourceBatch) -> WrittenBatch:
        """Encodes the sources and searches for their translations."""
        loaded, decoding, limits = self.loaded, self.decoding, batch.target_lengths
        source_BS, max_length = loaded.padded(batch.tokens, decoding.batch_size), loaded.card.config.max_length
        rows = source_BS.shape[0]
        if limits is None:
            (longest,) = length_limits([source_BS.shape[1]], max_length)
            limits = length_limits([len(tokens) for tokens in batch.tokens], max_length)
        else:
            longest = min(round_up(max(limits), BUCKET), max_length)
        limit_B = np.array([*limits, *[2] * (rows - len(limits))], np.int32)  # rows that pad the batch end at once
        inputs = SearchInputs(*loaded.place((source_BS, limit_B)))
        options: dict[str, Any] = {"search": decoding.search, "max_length": longest, "seed": decoding.seed}
        if (draft := decoding.draft) is not None:
            same = draft.encoder != "" and draft.encoder == loaded.encoder
            static = VerifyOptions(draft.drafter, decoding.search, longest, draft.tolerance, same)  # pyright: ignore
            found = write_verified(
                loaded.model, loaded.converted, inputs, draft.params, options=static, seed=decoding.seed
            )
            arrays = found.rows.tokens_BL, found.rows.length_B, found.score_B, found.rounds_B, found.draft_passes_B
            tokens_BL, length_B, score_B, *passes = on_host(arrays)
            return WrittenBatch(batch, tokens_BL[:, None], length_B[:, None], score_B[:, None], *passes)
        options["kept_v"] = loaded.written_ids(source_BS, decoding)
        with loaded.on_devices():
            written, score_BN, passes_B = write_targets(loaded.model, loaded.converted, inputs, **options)
        return WrittenBatch(batch, *on_host((written.tokens_BNL, written.length_BN, score_BN, passes_B)))

    def read(self, written: WrittenBatch) -> list[Translation]:
        """Returns the best row of each sentence as text."""
        results = []
        for b, best in enumerate(written.score_BN.argmax(-1)[: len(written.source.tokens)]):
            length = int(written.length_BN[b, best])
            text = self.loaded.tokenizer.decode(written.tokens_BNL[b, best, : length - 1].tolist())
            results.append(
                Translation(
                    text=one_line(text),
                    score=float(written.score_BN[b, best]),
                    length=length,
                    passes=int(written.passes_B[b]),
                    draft_passes=0 if written.draft_passes_B is None else int(written.draft_passes_B[b]),
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
                results[i] = TargetScore(log_prob, len(targets[i]))
        return results


Pipeline = RefiningPipeline | CausalPipeline
