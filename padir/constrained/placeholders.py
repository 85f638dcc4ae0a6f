"""Placeholders: spans of a source that stand in its translation as they are, each exactly once.

1. Marks take the places of the spans (`padir.text.marks`), and the sentence is translated.
2. The best hypothesis that has every mark is the translation; if none has, the best.
3. A model that writes from left to right continues a translation that lost a mark: the text up to the aligned place of
   the mark, and the mark, are its prefix.
4. The spans go back in place of their marks. Spans that are lost all the same get their places by word alignment.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from padir.decoding.options import Decoding
from padir.decoding.sentences import Request, SentenceTranslator, make_writer
from padir.decoding.templates import Template
from padir.decoding.translation import Translation, clean, one_line
from padir.errors import PadirError
from padir.text.marks import Marked, mark

_MOST_FORCED = 3  # lost marks of a sentence that are forced, one after the other
_ALL = sys.maxsize  # candidates


def marked_spans(translator: SentenceTranslator, texts: Sequence[str], kinds: Sequence[str]) -> list[Marked | None]:
    """The spans of each text, with marks in their places; None for a text without any.

    Args:
      kinds: kinds of spans, and patterns (`Decoding.placeholders`). Marks of a model that was trained with
        placeholders are spans, too.

    Raises:
      PadirError: there are kinds, and the model cannot give lost spans their places.
    """
    if kinds:
        translator.loaded.reader("keep words")
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
    results = translator.translate_sentences(read, decoding, dataclasses.replace(request, n_best=_ALL))
    for i, own in spans.items():
        if not own.text.strip() and texts[i].strip():
            results[i] = dataclasses.replace(results[i], text=one_line(texts[i]))
    spans = {i: own for i, own in spans.items() if own.text.strip()}
    for i, own in spans.items():
        results[i] = _whole(results[i], own)
    if request.target_lengths is None and (translator.card.config.causal or translator.card.config.dual):
        _continue_lost(translator, results, spans, decoding)
    results = [dataclasses.replace(each, candidates=each.candidates[: request.n_best]) for each in results]
    _put_back(translator, results, spans, decoding.batch_size)
    return results


def _whole(result: Translation, spans: Marked) -> Translation:
    """The first candidate of the best kind: better without broken characters, and then better with all marks."""
    best = min(result.candidates, key=lambda each: (each.broken > 0, spans.lost(each.text)))
    others = [each for each in result.candidates if each is not best]
    return dataclasses.replace(best, candidates=(best, *others), truncated=result.truncated)


def _continue_lost(
    translator: SentenceTranslator, results: list[Translation], spans: Mapping[int, Marked], decoding: Decoding
) -> None:
    """Writes results that lack marks again, from left to right; what has fewer faults then takes their places."""
    causal = translator.resolved(decoding).without("shortlist", "rerank")
    if causal.mode == "refine":
        causal = causal.without("num_drafts").changed(mode="causal")  # drafts are no samples
    searching = translator.with_writer(make_writer)  # other engines may hold no prefix
    room = translator.card.config.max_length - 2  # a token and EOS follow
    encode = translator.tokenizer.encode
    # The end of a source that was cut has marks that no model read.
    lost = [i for i, own in spans.items() if not results[i].truncated and own.missing(results[i].text)]
    for _ in range(_MOST_FORCED):
        if not lost:
            return
        pairs = [(spans[i].text, results[i].text) for i in lost]
        linked = translator.links(pairs, decoding.batch_size)
        templates = {}
        for i, numbers in zip(lost, linked, strict=True):
            begun = spans[i].begun(results[i].text, numbers)
            templates[i] = Template((tuple(encode(begun)[:room]), 0))
        templates = {i: own for i, own in templates.items() if own.spelt}
        request = Request(templates=[*templates.values()], n_best=_ALL)
        made = searching.translate_sentences([spans[i].text for i in templates], causal, request)
        left = []
        for i, again in zip(templates, made, strict=True):
            passes = results[i].passes + again.passes
            again = _whole(again, spans[i])
            if spans[i].faults(again.text) < spans[i].faults(results[i].text):
                listed = (dataclasses.replace(again, candidates=()), *results[i].candidates)
                results[i] = dataclasses.replace(again, candidates=listed)
                left += [i] if spans[i].missing(again.text) else []
            results[i] = dataclasses.replace(results[i], passes=passes)
        lost = left


def _put_back(
    translator: SentenceTranslator, results: list[Translation], spans: Mapping[int, Marked], batch_size: int
) -> None:
    """Puts the spans in place of their marks, in each text and its candidates."""
    texts = {(i, each.text) for i in spans for each in (results[i], *results[i].candidates)}
    placed = sorted((i, text) for i, text in texts if spans[i].lost(text) or "" in spans[i].marks)
    linked = translator.links([(spans[i].text, text) for i, text in placed], batch_size)
    numbers = dict(zip(placed, linked, strict=True))
    for i, own in spans.items():

        def put(text: str, i: int = i, own: Marked = own) -> str:
            return clean(own.finished(text, numbers.get((i, text))), own.original)

        results[i] = results[i].rewritten(put)
