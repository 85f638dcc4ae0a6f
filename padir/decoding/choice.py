"""The last stage of decoding: each sentence's best hypothesis, as text."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

from padir.decoding.autoregressive import score_drafts
from padir.decoding.batches import RefinedBatch
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.refine_batch import Drafts
from padir.decoding.rerank import CausalScore, Hypothesis, PseudoLikelihood
from padir.decoding.text import collapsed, one_line, without_repeats
from padir.decoding.translation import Translation
from padir.distributed.sharding import on_host
from padir.models.length import log_probs
from padir.models.transformer import Transformer
from padir.text.ids import EOS


def choose(loaded: LoadedModel, decoding: Decoding, refined: RefinedBatch) -> list[Translation]:
    """Ranks each sentence's hypotheses by `Decoding.rerank` and returns the best; of equal scores, the first wins.

    Args:
      decoding: options that `resolve` has filled in.
    """
    drafts, source = refined.drafts, refined.tried.batch.source
    rows = _own_rows(refined)
    hypotheses = _hypotheses(loaded, decoding, refined, rows)
    if (again_R := _read_again(loaded, decoding, refined, rows)) is not None:
        pairs = [zip(own, numbers, strict=True) for own, numbers in zip(hypotheses, rows, strict=True)]
        hypotheses = [[each._replace(again=again_R[row]) for each, row in own] for own in pairs]
    scores = decoding.rerank(source.texts, hypotheses, target_language=loaded.card.target_language)
    results = []
    for b, score_N in enumerate(scores):
        ranked = sorted(range(len(score_N)), key=score_N.__getitem__, reverse=True)  # ties keep their order
        best, listed = rows[b][ranked[0]], ranked[: decoding.n_best]
        results.append(
            Translation(
                text=draft_text(loaded, decoding, drafts.tokens_RL[best], drafts.free_RL[best]),
                score=score_N[ranked[0]],
                length=int(drafts.length_R[best]),
                passes=int(drafts.passes_R[best]),
                oscillated=bool(drafts.oscillated_R[best]),
                hypotheses=len(refined.tried.candidates[b]),
                whole_text=_whole_text(loaded, drafts.tokens_RL[best], drafts.free_RL[best]),
                trace=_trace(loaded, decoding, drafts, best),
                candidates=tuple((hypotheses[b][n].text, score_N[n]) for n in listed),
                candidate_lengths=tuple(int(drafts.length_R[rows[b][n]]) for n in listed),
            )
        )
    return results


def _own_rows(refined: RefinedBatch) -> list[list[int]]:
    """Numbers of the rows that hold each sentence's own candidates; the other rows only pad the batch."""
    kept_BN = refined.drafts.kept_BN
    return [
        [b * kept_BN.shape[1] + n for n, number in enumerate(kept_BN[b]) if number < len(candidates)]
        for b, candidates in enumerate(refined.tried.candidates)
    ]


def _hypotheses(
    loaded: LoadedModel, decoding: Decoding, refined: RefinedBatch, rows: list[list[int]]
) -> list[list[Hypothesis]]:
    """Each sentence's hypotheses; their texts are "" if the rerank rule and the options do not need texts."""
    drafts = refined.drafts
    length_log_prob_BM = on_host(log_probs(refined.tried.batch.encoded.length))
    read = decoding.rerank.reads_text or decoding.n_best > 0

    def hypothesis(b: int, row: int) -> Hypothesis:
        length_log_prob = None
        if length_log_prob_BM is not None:
            length_log_prob = float(length_log_prob_BM[b, drafts.length_R[row] - 1])
        return Hypothesis(
            text=draft_text(loaded, decoding, drafts.tokens_RL[row], drafts.free_RL[row]) if read else "",
            log_prob=float(drafts.log_prob_R[row]),
            tokens=int(drafts.free_RL[row].sum()),
            length_log_prob=length_log_prob,
        )

    return [[hypothesis(b, row) for row in own] for b, own in enumerate(rows)]


def _read_again(
    loaded: LoadedModel, decoding: Decoding, refined: RefinedBatch, rows: list[list[int]]
) -> list[tuple[float, int]] | None:
    """`Hypothesis.again` of every row of the drafts; None for rules that do not read them again.

    For `CausalScore`, a dual model's decoder reads all drafts in one teacher-forced pass.
    """
    drafts, batch = refined.drafts, refined.tried.batch
    if isinstance(decoding.rerank, PseudoLikelihood):
        return list(zip(refined.pseudo_R.tolist(), drafts.free_RL.sum(-1).tolist(), strict=True))
    if not isinstance(decoding.rerank, CausalScore):
        return None
    target_RL = np.zeros(drafts.tokens_RL.shape, np.int32)
    for row in (row for own in rows for row in own):
        tokens = _tokens(loaded, decoding, drafts.tokens_RL[row], drafts.free_RL[row])
        target_RL[row, : len(tokens) + 1] = [*tokens, EOS]
    with loaded.on_devices():
        log_prob_RL = score_drafts(
            Transformer(loaded.card.config.as_causal(), loaded.model.ids),
            loaded.converted,
            batch.cross_kv,
            batch.encoded.segment_BS,
            loaded.place(target_RL),
        )
    return list(zip(on_host(log_prob_RL.sum(-1)).tolist(), (target_RL > 0).sum(-1).tolist(), strict=True))


def draft_text(
    loaded: LoadedModel,
    decoding: Decoding,
    tokens_L: Int[np.ndarray, " L"],
    free_L: Bool[np.ndarray, " L"],
) -> str:
    """The text of a draft's free tokens, without repeated tokens if `Decoding.drop_repeats` says so."""
    return one_line(loaded.tokenizer.decode(_tokens(loaded, decoding, tokens_L, free_L)))


def _tokens(loaded: LoadedModel, decoding: Decoding, tokens_L, free_L) -> list[int]:
    """The tokens of `draft_text`."""
    if not decoding.drops_repeats:
        return _whole_tokens(loaded, tokens_L, free_L)
    return without_repeats(tokens_L, free_L, loaded.tokenizer.copied)


def _whole_text(loaded: LoadedModel, tokens_L: Int[np.ndarray, " L"], free_L: Bool[np.ndarray, " L"]) -> str:
    """The text of a draft's free tokens, repeated ones included; a CTC model's tokens are collapsed."""
    return one_line(loaded.tokenizer.decode(_whole_tokens(loaded, tokens_L, free_L)))


def _whole_tokens(loaded: LoadedModel, tokens_L, free_L) -> list[int]:
    ctc = loaded.card.config.ctc
    return collapsed(tokens_L, free_L, loaded.model.ids.blank) if ctc else tokens_L[free_L].tolist()


def _trace(loaded: LoadedModel, decoding: Decoding, drafts: Drafts, row: int):
    """The pieces and log-probabilities of a row's draft and of every step; None if the steps were not traced."""
    if drafts.trace_TRL is None:
        return None
    length, pieces = int(drafts.length_R[row]), loaded.tokenizer.pieces
    tokens_TL, scores_TL = (each_TRL[: decoding.num_steps + 1, row, :length] for each_TRL in drafts.trace_TRL)
    return tuple(
        (
            tuple(pieces[i] for i in tokens_L),
            tuple(None if np.isnan(score) else float(score) for score in scores_L),
        )
        for tokens_L, scores_L in zip(tokens_TL, scores_TL, strict=True)
    )
