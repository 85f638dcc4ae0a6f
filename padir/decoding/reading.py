"""Reading of hypotheses into translations: ranks those of each sentence and makes text of the best."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from padir.checks import fits
from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.loaded import EncodedBatch, LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.ranker import Ranker
from padir.decoding.scoring import with_causal_scores
from padir.decoding.translation import Translation
from padir.decoding.writer import Shapes, Written
from padir.errors import PadirError, first_line
from padir.reporting.trace import step_of
from padir.text.cleaning import broken, clean, text_of
from padir.text.ids import PADDING, UNK, Ids


def best_translations(
    loaded: LoadedModel,
    sources: Sequence[SourceSentence],
    written: Written,
    decoding: Decoding,
    shapes: Shapes,
) -> list[Translation]:
    """The best hypothesis of each sentence as text.

    A hypothesis without broken characters comes before all others. Else the scores of `Decoding.ranker` decide, or for
    None the writer's ranks; of equal ones, the first wins. A sentence with a single hypothesis keeps the writer's
    score.

    Args:
      decoding, shapes: the ones that the batch was written with.

    Raises:
      PadirError: a writer or a rule of somebody else's does not keep its contract.
    """
    _check(written, sources, loaded.card.ids, loaded.card.config.max_length)
    ranker = decoding.ranker
    hypotheses = [*written.hypotheses]
    scores = [[float(each.score) for each in own] for own in hypotheses]  # NumPy's numbers do not fit JSON
    ranks = [[float(each.order) for each in own] for own in hypotheses]
    several = [b for b, own in enumerate(hypotheses) if len(own) > 1]
    if ranker is not None and several:
        if "causal" in ranker.needs:
            tokens = [each.tokens for each in sources]
            batch = written.encoded or loaded.encode(tokens, decoding.batch_size, shapes.lengths)
            hypotheses = with_causal_scores(loaded, batch, hypotheses, shapes)
        if "text" in ranker.needs:
            for b in several:
                source = sources[b].text
                hypotheses[b] = [
                    each._replace(text=text_of(loaded.tokenizer, each.tokens, source)) for each in hypotheses[b]
                ]
        texts = [sources[b].text for b in several]
        ranked = _ranked(ranker, texts, [hypotheses[b] for b in several], loaded.card.target_language)
        for b, own in zip(several, ranked, strict=True):
            scores[b] = own
            ranks[b] = own
    return [
        _best(loaded, source, own, of_source, rank, n_best=decoding.n_best, number=written.searched or len(own))
        for source, own, of_source, rank in zip(sources, hypotheses, scores, ranks, strict=True)
    ]


def _check(written: Written, sources: Sequence[SourceSentence], ids: Ids, max_length: int) -> None:
    """Refuses what is no `Written` of the sentences: hypotheses that cannot be read or compared, or lack fixed text."""
    if not isinstance(written, Written) or not fits(written.hypotheses, Sequence[Sequence[Hypothesis]]):
        raise PadirError("Writer.write gives no padir.decoding.Written of lists of hypotheses", got=written)
    if not isinstance(written.encoded, EncodedBatch | None) or not fits(written.searched, int | None):
        raise PadirError("Written.encoded and Written.searched", "an EncodedBatch and a number, or None", written[1:])
    counts = [*map(len, written.hypotheses)]
    if len(counts) != len(sources) or 0 in counts:
        expected = f"at least one hypothesis for each of {len(sources)} sentences"
        raise PadirError("what Writer.write gives", expected, counts, "give one list for each sentence")
    if written.encoded is not None:
        rows = written.encoded.source_BS[: len(sources)].tolist()
        width = written.encoded.source_BS.shape[1]
        if rows != [[*each.tokens, *[PADDING] * (width - len(each.tokens))] for each in sources]:
            remedy = "leave it None, or encode the sentences of the batch in their order"
            raise PadirError("Written.encoded is of other sentences than the batch", remedy=remedy)
    end = ids.end_regular + ids.num_placeholders
    for source, own in zip(sources, written.hypotheses, strict=True):
        for each in own:
            whole = each.tokens if each.whole is None else each.whole
            for tokens in map(np.asarray, [each.tokens] if each.whole is None else [each.tokens, each.whole]):
                if (
                    tokens.ndim != 1
                    or tokens.size
                    and not (tokens.dtype.kind in "iu" and UNK <= tokens.min() <= tokens.max() < end)
                ):
                    expected = f"whole numbers from {UNK} on, below {end}, the first id that stands for no text"
                    what = "the tokens of a hypothesis, by a writer or by a strategy of your own,"
                    raise PadirError(what, expected, tokens.tolist())
            if not fits(each.passes, int) or each.passes < 0:
                raise PadirError("the passes of a writer's hypothesis", "a whole number from 0 on", each.passes)
            if (each.rank is None) != (own[0].rank is None):
                raise PadirError("Hypothesis.rank", "given for all hypotheses of a sentence, or for none", each.rank)
            if source.template is not None and not source.template.is_held(whole):
                what = "a writer's hypothesis lacks the template's fixed text"
                raise PadirError(what, got=whole, remedy="hold SourceSentence.template, or refuse it by a PadirError")
            most = max_length if source.target_length is None else source.target_length
            if each.length > most:
                remedy = "keep SourceSentence.target_length and ModelConfig.max_length, or raise a PadirError"
                raise PadirError("the length of a hypothesis", f"at most {most}", each.length, remedy)
            if each.trace is not None and not (fits(each.trace, tuple) and [*map(np.ndim, each.trace)] == [2, 2]):
                raise PadirError("the trace of a hypothesis", "ids and log-probabilities, [T, L] each", each.trace)
            # A search without scores has one hypothesis.
            for name, value in (("score", each.score), ("rank", each.order)):
                if not fits(value, float) or (len(own) > 1 and not math.isfinite(value)):
                    remedy = "make it a number of Python (`float`)"
                    raise PadirError(f"the {name} of a writer's hypothesis", "a finite number", value, remedy)


def _ranked(
    ranker: Ranker, sources: Sequence[str], hypotheses: Sequence[Sequence[Hypothesis]], target_language: str
) -> list[list[float]]:
    """The rule's scores; an error of the rule's own code is left as it is."""
    remedy = "(sources, hypotheses, *, target_language) gives a list for each source, a score for each hypothesis"
    copied = [[each._replace(tokens=[*each.tokens]) for each in own] for own in hypotheses]  # a rule may change them
    scores = ranker(sources, copied, target_language=target_language)
    try:
        ranked = [[float(score) for score in own] for own in scores]
    except (TypeError, ValueError) as error:
        raise PadirError(f"the rule {ranker} gives no scores ({first_line(error)})", remedy=remedy) from error
    if len(ranked) != len(sources):
        expected = f"a list of scores for each of {len(sources)} sentences"
        raise PadirError(f"what the rule {ranker} gives", expected, f"{len(ranked)} lists", remedy)
    for own, of_sentence in zip(ranked, hypotheses, strict=True):
        if len(own) != len(of_sentence) or any(math.isnan(each) or each == math.inf for each in own):
            expected = f"{len(of_sentence)} scores of a sentence, neither NaN nor plus infinity"
            raise PadirError(f"what the rule {ranker} gives", expected, own, remedy)
    return ranked


def best_first(ranks: Sequence[float], is_broken: Callable[[int], bool]) -> list[int]:
    """The numbers of hypotheses: first the one that the sentence gets, then the others by falling rank.

    A sentence gets the highest one without broken characters, or if all have some, the highest; of equal ones, the
    first.
    """
    ranked = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
    best = next((n for n in ranked if not is_broken(n)), ranked[0])
    return [best, *(n for n in ranked if n != best)]


def _best(
    loaded: LoadedModel,
    source: SourceSentence,
    hypotheses: Sequence[Hypothesis],
    scores: Sequence[float],
    ranks: Sequence[float],
    *,
    n_best: int,
    number: int,
) -> Translation:
    """The translation of one sentence, with up to `n_best` candidates of different texts, by falling rank."""

    @functools.cache
    def translation(n: int) -> Translation:
        return _translation(loaded, source, hypotheses[n], score=scores[n], number=number)

    best, *others = best_first(ranks, lambda n: bool(translation(n).broken))
    best = translation(best)
    if not n_best:
        return best
    listed = {best.text: best}
    for each in map(translation, others):
        listed.setdefault(each.text, each)
    return dataclasses.replace(best, candidates=tuple(listed.values())[:n_best])


def _translation(
    loaded: LoadedModel, source: SourceSentence, hypothesis: Hypothesis, *, score: float, number: int
) -> Translation:
    """One of `number` hypotheses, or rows of a search, as a translation."""
    text = loaded.tokenizer.decode(hypothesis.tokens, source.text)
    whole_text = None
    if hypothesis.whole is not None:
        whole_text = text_of(loaded.tokenizer, hypothesis.whole, source.text)
    return Translation(
        text=clean(text, source.text),
        score=score,
        length=hypothesis.length,
        passes=int(hypothesis.passes),
        hypotheses=number,
        trace=hypothesis.trace and tuple(map(functools.partial(step_of, loaded.tokenizer.pieces), *hypothesis.trace)),
        oscillated=hypothesis.oscillated,
        fell_back=hypothesis.fell_back,
        whole_text=whole_text,
        broken=broken(text, source.text),
        read_again=hypothesis.causal is not None,
    )
