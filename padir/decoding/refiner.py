"""`Refiner`, the writer of models that refine drafts.

1. `encode` computes the encoder's output of the sources, once for all drafts.
2. `plan_drafts` lists the drafts to try for each sentence, by its most likely target lengths.
3. `refine` makes these drafts and refines all of them in one jitted loop.
4. `hypotheses` reads the drafts into token lists on the host.

`padir.mjs` and packages of `padir.interop` repeat the rules of 2 to 4 (CONTRIBUTING.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from padir.decoding.encoding import padded_length, rows_together
from padir.decoding.fit import check_held, check_resolved
from padir.decoding.hypothesis import Hypothesis, SourceSentence, not_finite
from padir.decoding.loaded import EncodedBatch, LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.planned_drafts import PlannedDraft, planned_drafts
from padir.decoding.ranker import length_normalised
from padir.decoding.refine_batch import DraftInputs, Drafts, ModelDecoder, RefineOptions, joined, lay_out, refine_drafts
from padir.decoding.writer import Shapes, Written
from padir.distributed.sharding import on_host
from padir.errors import PadirError
from padir.models.length import top_lengths
from padir.refinement.loop import steps
from padir.refinement.segments import check_array
from padir.text.cleaning import without_repeats
from padir.text.ids import pad_rows, round_up

_NONE = PlannedDraft(0, 0)  # takes the place of a draft in a row that has none
_SOURCES = (16, 48, 128, 384)  # lengths of sources: each width of canvas compiles a program for each of them
_TRACE_ROOM = 4  # the number of traced steps is rounded up to a multiple of this


@dataclasses.dataclass(frozen=True, eq=False)
class Refiner:
    """Refines several drafts of each sentence.

    Attributes:
      decoding: options that `resolve` has filled in.
      trace: keep every step of the drafts.
      shapes: shapes that batches are padded to.
    """

    loaded: LoadedModel
    decoding: Decoding
    trace: bool = False
    shapes: Shapes = Shapes()

    def __post_init__(self):
        check_resolved(self.decoding, "refine")

    @property
    def most_hypotheses(self) -> int:
        return self.decoding.num_hypotheses

    def write(self, sources: Sequence[SourceSentence]) -> Written:
        """Writes the hypotheses of a batch, at least one for each draft."""
        batch = self.encode(sources)
        tried = self.plan_drafts(sources, batch)
        return Written(self.hypotheses(sources, batch, tried, self.refine(batch, tried)), batch)

    def encode(self, sources: Sequence[SourceSentence]) -> EncodedBatch:
        """Encodes a batch; its arrays may not be computed yet."""
        return self.loaded.encode(
            [each.tokens for each in sources], self.decoding.batch_size, self.shapes.lengths or _SOURCES
        )

    def plan_drafts(self, sources: Sequence[SourceSentence], batch: EncodedBatch) -> list[list[PlannedDraft]]:
        """Lists the drafts to try for each sentence, of its given target length or of predicted lengths.

        Raises:
          PadirError: a template that cannot be held.
        """
        decoding = self.decoding
        check_held(decoding, sources, self.loaded.card.config)
        given = {b: source.target_length for b, source in enumerate(sources) if source.target_length is not None}
        likely: list[list[int]] = [[] for _ in sources]
        if len(given) < len(sources):
            options = decoding.num_lengths, decoding.length_window, decoding.length_min_p
            length_BK = on_host(top_lengths(batch.encoded.length, *options))
            likely = [[length for length in row if length] for row in length_BK[: len(sources)].tolist()]
        lengths = [[given[b]] if b in given else row for b, row in enumerate(likely)]
        most = self.loaded.card.config.max_length
        return [
            planned_drafts(own, decoding.num_drafts, most, source.template)
            for source, own in zip(sources, lengths, strict=True)
        ]

    def refine(self, batch: EncodedBatch, tried: Sequence[Sequence[PlannedDraft]]) -> Drafts:
        """Makes the planned drafts and refines all of them; gives them on the host."""
        calls = self.calls(batch, tried)
        with self.loaded.on_devices():
            return joined([on_host(refine_drafts(self.loaded.model, self.loaded.converted, *each)) for each in calls])

    def calls(
        self, batch: EncodedBatch, tried: Sequence[Sequence[PlannedDraft]]
    ) -> list[tuple[DraftInputs, RefineOptions]]:
        """The arguments of `refine_drafts` after the model and its parameters, for each width of canvas."""
        source_BS = self.loaded.place(batch.source_BS)
        kept_v = self.loaded.written_ids(batch.source_BS, self.decoding.shortlist)
        return [self._arguments(batch, some, source_BS, kept_v) for some in self._by_width(tried)]

    def _by_width(self, tried: Sequence[Sequence[PlannedDraft]]) -> list[Sequence[Sequence[PlannedDraft]]]:
        """The planned drafts by width of canvas, narrowest first; in each part `_NONE` stands in place of the others.

        A single part has all, unless the decoder takes rows in groups, in which rows without a draft cost nothing.
        """
        widths = [[padded_length(each.length) for each in own] for own in tried]
        found = sorted({width for own in widths for width in own})
        together = self._rows_together(found[-1])
        few = together is None or sum(map(len, tried)) <= together
        if few or self.trace or self.shapes.lengths or self.decoding.prefix_beam > 1:
            return [tried]
        return [
            [
                [each if of_each == width else _NONE for each, of_each in zip(own, of_own, strict=True)]
                for own, of_own in zip(tried, widths, strict=True)
            ]
            for width in found
        ]

    def _rows_together(self, length: int) -> int | None:
        # Several devices use no groups: groups take rows from all over the batch, so the devices would have to
        # exchange rows at every step.
        return rows_together(length, self.loaded.platform) if self.loaded.mesh is None else None

    def hypotheses(
        self,
        sources: Sequence[SourceSentence],
        batch: EncodedBatch,
        tried: Sequence[Sequence[PlannedDraft]],
        drafts: Drafts,
    ) -> list[list[Hypothesis]]:
        """Reads the refined drafts of each sentence; leaves out rows of a prefix beam that hold no sentence.

        Raises:
          PadirError: a log-probability is not finite.
        """
        most = drafts.length_R.size // batch.source_BS.shape[0]  # rows of a sentence
        found = []
        for b, (source, own) in enumerate(zip(sources, tried, strict=True)):
            rows = range(b * most, b * most + len(own) * self.decoding.prefix_beam)
            if self.decoding.prefix_beam > 1:
                rows = [row for row in rows if row == rows[0] or drafts.log_prob_R[row] != -np.inf]
            if not np.isfinite(drafts.log_prob_R[rows]).all():
                raise not_finite()
            repeats = self.loaded.tokenizer.copied
            if source.template is not None:
                repeats |= source.template.repeats
            written = [self._hypothesis(drafts, row, repeats) for row in rows]
            if self.decoding.prefix_beam > 1 and self.decoding.fusion is not None:  # the search's order, by both scores
                written = [each._replace(rank=-float(n)) for n, each in enumerate(written)]
            found.append(written)
        return found

    def _hypothesis(self, drafts: Drafts, row: int, repeats: frozenset[int]) -> Hypothesis:
        """A row of the drafts; `repeats` are the ids that may stand beside themselves."""
        log_prob = float(drafts.log_prob_R[row])
        # Fixed tokens count, though they have no log-probability; EOS stands where the length says and does not.
        counted = int(drafts.editable_RL[row].sum())
        geometry = self.loaded.card.config.geometry
        read_L = geometry.collapse_mask(drafts.tokens_RL[row], drafts.editable_RL[row], self.loaded.model.ids)
        check_array(f"{type(geometry).__name__}.collapse_mask", read_L, drafts.tokens_RL[row].shape, np.bool_)
        whole = drafts.tokens_RL[row][read_L].tolist()
        tokens = whole
        if drops := self.decoding.drops_repeats:
            tokens = without_repeats(whole, repeats)
        trace = None
        if drafts.trace_TRL is not None:
            length = int(drafts.length_R[row])
            tokens_TL, scores_TL = (part[: self.decoding.num_steps + 1, row, :length] for part in drafts.trace_TRL)
            trace = tokens_TL, scores_TL
        return Hypothesis(
            tokens=tokens,
            score=length_normalised(log_prob, counted, self.decoding.length_normalization),
            passes=int(drafts.passes_R[row]),
            oscillated=bool(drafts.oscillated_R[row]),
            whole=whole if drops else None,
            trace=trace,
        )

    def steps(self, source: SourceSentence) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields tokens_L and score_L of one sentence: its draft of the most likely length, then after each pass.

        The score is NaN where nothing was written.
        """
        if self.decoding.shortlist is not None:
            raise PadirError("steps cannot be shown with a shortlist", remedy="leave the shortlist out")
        loaded = self.loaded
        batch = self.encode([source])
        ((inputs, options),) = self.calls(batch, [own[:1] for own in self.plan_drafts([source], batch)])
        length = int(inputs.length_BN[0, 0])
        with loaded.on_devices():
            key_R, canvas, decoder = lay_out(loaded.model, loaded.converted, jax.tree.map(jnp.asarray, inputs), options)
            called = Partial(ModelDecoder.__call__, decoder)  # its arrays are arguments of the program
            states = steps(key_R, canvas, called, options.strategy, num_steps=self.decoding.num_steps)
        while True:
            with loaded.on_devices():  # but not between two steps
                state = next(states, None)
            if state is None:
                return
            yield on_host((state.canvas.tokens_BL[0, :length], state.canvas.known_score_BL[0, :length]))

    def _arguments(
        self, batch: EncodedBatch, tried: Sequence[Sequence[PlannedDraft]], source_BS: Any, kept_v: Any
    ) -> tuple[DraftInputs, RefineOptions]:
        """The arguments of one call: the sources on their devices, and the ids that a shortlist keeps for the batch."""
        decoding = self.decoding
        loaded = self.loaded
        assert decoding.strategy is not None and decoding.canvas is not None
        most = max(map(len, tried))
        counts = self.shapes.counts if decoding.prefix_beam == 1 else ()  # a prefix beam has one canvas a sentence
        few = 1 << (most - 1).bit_length()  # few programs
        if most <= decoding.num_canvases < few:
            few = decoding.num_canvases
        most = min((count for count in counts if count >= most), default=few)
        table = [[*own, *[_NONE] * (most - len(own))] for own in tried]
        table += [[_NONE] * most] * (batch.source_BS.shape[0] - len(table))
        length_BN = np.array([[each.length for each in own] for own in table], np.int32)
        draw_BN = np.array([[each.draw for each in own] for own in table], np.int32)
        longest = max(int(length_BN.max()), batch.source_BS.shape[1] if self.shapes.lengths else 0)
        length = min(padded_length(longest, self.shapes.lengths), loaded.card.config.max_length)
        fixed_RL = None
        if any(each.fixed for own in tried for each in own):
            fixed_RL = loaded.place(pad_rows([[*each.fixed] for own in table for each in own], length))
        inputs = DraftInputs(
            cross_kv=batch.cross_kv,
            source_segment_BS=batch.encoded.segment_BS,
            source_BS=source_BS,
            length_BN=loaded.place(length_BN),
            draw_BN=loaded.place(draw_BN),
            num_steps=decoding.num_steps,
            seed=decoding.seed,
            blank_penalty=decoding.blank_penalty,
            fixed_RL=fixed_RL,
            kept_v=kept_v,
            fused=decoding.fusion and decoding.fusion.over(loaded.table, "refine", kept_v),
        )
        options = RefineOptions(
            max_target_length=length,
            strategy=decoding.strategy,
            corruption=decoding.canvas,
            rows_at_once=self._rows_together(length),
            # The trace has room for a few more steps, so that similar numbers of steps share a program.
            traced_steps=round_up(decoding.num_steps, _TRACE_ROOM) if self.trace else None,
            prefix_beam=decoding.prefix_beam,
        )
        return inputs, options
