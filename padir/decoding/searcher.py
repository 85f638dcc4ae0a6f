"""`Searcher`, the writer of models that write from left to right."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from padir.decoding.autoregressive import length_limits, write_targets
from padir.decoding.encoding import padded_length
from padir.decoding.fit import check_held, check_resolved
from padir.decoding.hypothesis import Hypothesis, SourceSentence, not_finite
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.planned_drafts import SHORTEST
from padir.decoding.writer import Shapes, Written
from padir.distributed.sharding import on_host
from padir.text.ids import pad_rows


@dataclasses.dataclass(frozen=True, eq=False)
class Searcher:
    """Searches for translations from left to right, or samples them, as `Decoding.search` says.

    Attributes:
      decoding: options that `resolve` has filled in.
      shapes: its `lengths` are allowed lengths of the rows of sources.
    """

    loaded: LoadedModel
    decoding: Decoding
    shapes: Shapes = Shapes()

    def __post_init__(self):
        check_resolved(self.decoding, "causal")

    @property
    def most_hypotheses(self) -> int:
        return self.decoding.num_hypotheses

    def write(self, sources: Sequence[SourceSentence]) -> Written:
        """Writes the hypotheses of a batch, the finished rows of the search."""
        loaded = self.loaded
        decoding = self.decoding
        check_held(decoding, sources, loaded.card.config)
        source_BS = loaded.padded([each.tokens for each in sources], decoding.batch_size, self.shapes.lengths)
        rows = source_BS.shape[0]
        limits, longest = self._limits(sources, source_BS.shape[1])
        # Rows that pad the batch end at once.
        limit_B = np.array([*limits, *[SHORTEST] * (rows - len(limits))], np.int32)
        prefix_BL = None
        if any(source.template is not None for source in sources):
            prefixes = [[*_prefix(source)] for source in sources]
            prefix_BL = loaded.place(pad_rows(prefixes, longest, rows))
        kept_v = loaded.written_ids(source_BS, decoding.shortlist)
        with loaded.on_devices():
            found, score_BN, passes_B = write_targets(
                loaded.model,
                loaded.converted,
                loaded.place(source_BS),
                loaded.place(limit_B),
                search=decoding.search,
                max_length=longest,
                seed=decoding.seed,
                kept_v=kept_v,
                fused=decoding.fusion and decoding.fusion.over(loaded.table, "causal", kept_v),
                prefix_BL=prefix_BL,
            )
        tokens_BNL, length_BN, score_BN, passes_B = on_host((found.tokens_BNL, found.length_BN, score_BN, passes_B))
        hypotheses = [
            _finished(tokens_BNL[b], length_BN[b], score_BN[b], int(passes_B[b])) for b in range(len(sources))
        ]
        return Written(hypotheses, searched=decoding.search.size)

    def _limits(self, sources: Sequence[SourceSentence], width: int) -> tuple[list[int], int]:
        """The most target tokens of each sentence, EOS included, and the length of the program's rows."""
        most = self.loaded.card.config.max_length
        given = {b: source.target_length for b, source in enumerate(sources) if source.target_length is not None}
        if len(given) == len(sources):
            return [*given.values()], min(padded_length(max(given.values())), most)
        limits = length_limits([len(source.tokens) for source in sources], most)
        (longest,) = length_limits([width], most)
        if any(source.template is not None for source in sources):
            # What follows a prefix has room for a whole translation.
            least = [0 if source.template is None else source.template.least for source in sources]
            limits = [min(limit + more, most) for limit, more in zip(limits, least, strict=True)]
            longest = min(1 << (max(limits) - 1).bit_length(), most)  # few programs
        if given:
            limits = [given.get(b, limit) for b, limit in enumerate(limits)]
            longest = max(longest, min(padded_length(max(given.values())), most))
        return limits, longest


def _finished(tokens_NL: np.ndarray, length_N: np.ndarray, score_N: np.ndarray, passes: int) -> list[Hypothesis]:
    """The finished rows of a sentence."""
    rows = np.flatnonzero(np.isfinite(score_N))
    if not rows.size:
        raise not_finite()
    return [
        Hypothesis(
            tokens=tokens_NL[n, : length_N[n] - 1].tolist(),
            score=float(score_N[n]),
            passes=passes,
        )
        for n in rows
    ]


def _prefix(source: SourceSentence) -> tuple[int, ...]:
    return () if source.template is None else source.template.prefix or ()
