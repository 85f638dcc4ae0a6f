"""Placeholders: spans of a source that stand in its translation as they are, each exactly once.

1. Marks take the places of the spans (`padir.text.marks`), and the sentence is translated.
2. The hypothesis with the fewest faults is the translation: marks that are lost, or that would stand twice.
3. A model that writes from left to right continues a translation that lost a mark: the text up to the aligned place of
   the mark, and the mark, are its prefix.
4. The spans go back in place of their marks. Spans that are lost all the same get their places by word alignment.

Here `result.candidates[0]` has the result's text; `passes` of the result alone counts all rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from padir.decoding.options import MOST_ROWS, Decoding
from padir.decoding.sentences import Request, SentenceTranslator
from padir.decoding.templates import Template
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.text.cleaning import clean, one_line
from padir.text.marks import Marked, mark

_MOST_FORCED = 3  # lost marks of a sentence that are forced, one after the other


def marked_spans(translator: SentenceTranslator, texts: Sequence[str], kinds: Sequence[str]) -> list[Marked | None]:
    """The spans of each text, with marks in their places; None for a text without any.

    Args:
      kinds: kinds of spans, and patterns (`Decoding.placeholders`). Marks of a model that was trained with
        placeholders are spans, too.

    Raises:
      PadirError: there are kinds, and the model cannot give lost spans their places.
    """
    if kinds:
        translator.loaded.sentence_side("keep words")
    placeholders = translator.card.ids.num_placeholders > 0 and translator.loaded.aligns
    if not kinds and not placeholders:
        return [None] * len(texts)
    return [mark(text, kinds, placeholders) for text in texts]


def translate_marked(
    translator: SentenceTranslator,
    texts: Sequence[str],
    marked: Sequence[Marked | None],
    decoding: Decoding,
    request: Request,
) -> list[Translation]:
    """The translations of texts with their spans in place; a text of spans alone stays as it is.

    Args:
      decoding: the options of the call, for both modes: lost marks may be written in the other one.

    Raises:
      PadirError: a text has a template beside spans.
    """
    spans = {i: own for i, own in enumerate(marked) if own is not None}
    if not spans:
        return translator.translate_sentences(texts, decoding, request)
    if request.templates is not None:
        what = "a template cannot hold words beside the spans of placeholders"
        raise PadirError(what, got=next(iter(spans.values())).original, remedy="leave placeholders or the template out")
    read = [text if own is None else own.text for text, own in zip(texts, marked, strict=True)]
    every = decoding.changed(n_best=MOST_ROWS)
    results = translator.translate_sentences(read, every, request)
    for i in [i for i, own in spans.items() if not own.text.strip()]:
        if texts[i].strip():
            results[i] = dataclasses.replace(results[i], text=one_line(texts[i]))
        del spans[i]
    for i, own in spans.items():
        results[i] = _led_by_best(results[i], own)
    if request.target_lengths is None and (translator.card.config.causal or translator.card.config.dual):
        _continue_lost(translator, results, spans, every)
    results = [dataclasses.replace(each, candidates=each.candidates[: decoding.n_best]) for each in results]
    _put_back(translator, results, spans, decoding.batch_size)
    return results


def _led_by_best(result: Translation, spans: Marked, before: Sequence[Translation] = ()) -> Translation:
    """The best candidate as the result. Its candidates are itself, then `before` if given, else the other candidates.

    Candidates without broken characters are better, and of these the ones with the fewest faults.
    """
    best = min(result.candidates, key=lambda each: (each.broken > 0, spans.faults(each.text)))
    others = before or [each for each in result.candidates if each is not best]
    return dataclasses.replace(best, candidates=(best, *others), truncated=result.truncated)


def _continue_lost(
    translator: SentenceTranslator, results: list[Translation], spans: Mapping[int, Marked], decoding: Decoding
) -> None:
    """Writes results that lack marks again, from left to right, one mark after the other.

    After each round, a result has fewer faults than before; otherwise the earlier one stays, and is not tried again.
    Its passes are the sum of all rounds.
    """
    causal = decoding.without("shortlist", "rerank").changed(mode="causal")
    searching = translator.with_padirs_writer()  # other engines may hold no prefix
    # The end of a source that was cut has marks that no model read.
    lost = [i for i, own in spans.items() if not results[i].truncated and own.missing(results[i].text)]
    for _ in range(_MOST_FORCED):
        prefixes = _prefixes(translator, {i: (spans[i], results[i].text) for i in lost}, decoding.batch_size)
        if not prefixes:
            return
        request = Request(templates=[*prefixes.values()])
        made = searching.translate_sentences([spans[i].text for i in prefixes], causal, request)
        lost = []
        for i, again in zip(prefixes, made, strict=True):
            passes = results[i].passes + again.passes
            again = _led_by_best(again, spans[i], before=results[i].candidates)
            if spans[i].faults(again.text) < spans[i].faults(results[i].text):
                results[i] = again
                lost += [i] if spans[i].missing(again.text) else []
            results[i] = dataclasses.replace(results[i], passes=passes)


def _prefixes(
    translator: SentenceTranslator, lost: Mapping[int, tuple[Marked, str]], batch_size: int
) -> dict[int, Template]:
    """The beginning of each translation up to its first missing mark, and this mark; none without a known token."""
    room = translator.card.config.max_length - 2  # a token and EOS follow
    linked = translator.links([(spans.text, text) for spans, text in lost.values()], batch_size)
    found = {}
    for (i, (spans, text)), numbers in zip(lost.items(), linked, strict=True):
        tokens = translator.tokenizer.encode(spans.begun(text, numbers))
        prefix = Template((tuple(tokens[:room]), 0))
        if prefix.spelt:
            found[i] = prefix
    return found


def _put_back(
    translator: SentenceTranslator, results: list[Translation], spans: Mapping[int, Marked], batch_size: int
) -> None:
    """Puts the spans in place of their marks, in each text, its candidates, and the text with its repeats."""
    written = ((i, each) for i in spans for each in (results[i], *results[i].candidates))
    texts = {(i, text) for i, each in written for text in (each.text, each.whole_text) if text is not None}
    placed = sorted((i, text) for i, text in texts if spans[i].missing(text) or "" in spans[i].marks)
    linked = translator.links([(spans[i].text, text) for i, text in placed], batch_size)
    numbers = dict(zip(placed, linked, strict=True))
    for i, own in spans.items():

        def put(text: str, i: int = i, own: Marked = own) -> str:
            return clean(own.finished(text, numbers.get((i, text))), own.original)

        results[i] = results[i].rewritten(put)
