"""Translations of paragraphs, joined from those of their sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from padir.decoding.translation import EMPTY_LINE, Translation
from padir.errors import PadirError
from padir.models.directory import ModelCard
from padir.text.cleaning import one_line
from padir.text.sentences import Paragraph


class TranslatedLine(NamedTuple):
    """A line and its translation, and each sentence and its translation; an unsplit line is its only sentence.

    The rows of sentences in JSON have no sentences of their own.
    """

    source: str
    translation: Translation
    sentences: tuple[tuple[str, Translation], ...]


def split_sentences(
    texts: Iterable[str], language: str, kinds: Sequence[str], *, split: bool = True
) -> tuple[list[Paragraph], list[str]]:
    """The texts as paragraphs, and all of their sentences in order.

    Args:
      kinds: kinds of spans in which no sentence ends (`Paragraph.split`).
      split: False takes each text as one sentence.
    """
    paragraphs = [Paragraph.split(text, language, kinds) if split else Paragraph.whole(text) for text in texts]
    return paragraphs, [sentence for paragraph in paragraphs for sentence in paragraph.sentences]


def check_split(*, terms: Any = None, align: bool = False, template: Any = None, target_lengths: Any = None) -> None:
    """Refuses arguments of `Translator.translate` that are for whole texts, because texts are split into sentences."""
    for_each = {"a template": template, "target_lengths": target_lengths, "align": align or None}
    if not isinstance(terms, Mapping):
        for_each["terms"] = terms
    if names := [name for name, value in for_each.items() if value is not None]:
        what = f"split excludes {', '.join(names)}"
        raise PadirError(what, remedy="leave split out; terms may be one mapping for all texts")


def join_sentences(
    texts: Sequence[str], paragraphs: Sequence[Paragraph], results: Iterable[Translation], target_language: str
) -> list[TranslatedLine]:
    """Joins `results`, the translations of all sentences of the paragraphs, into one translation for each text."""
    left, done = iter(results), []
    for text, paragraph in zip(texts, paragraphs, strict=True):
        parts = tuple((sentence, next(left)) for sentence in paragraph.sentences)
        done.append(TranslatedLine(text, _together(paragraph, parts, target_language), parts))
    return done


def by_sentences(
    texts: Sequence[str],
    card: ModelCard,
    kinds: Sequence[str],
    translate: Callable[[list[str]], Iterable[Translation]],
    *,
    split: bool = True,
) -> list[TranslatedLine]:
    """Translates each sentence of the texts by itself; `kinds` and `split` as in `split_sentences`."""
    paragraphs, sentences = split_sentences(texts, card.source_language, kinds, split=split)
    return join_sentences(texts, paragraphs, translate(sentences), card.target_language)


def _together(paragraph: Paragraph, parts: Sequence[tuple[str, Translation]], target_language: str) -> Translation:
    """The translation of a line, joined from its sentences; the score is their mean score, weighted by length."""
    results = [result for _, result in parts]

    def joined(texts: Sequence[str]) -> str:
        return "\n".join(map(one_line, paragraph.joined(texts, target_language).split("\n")))

    if not results:
        return EMPTY_LINE
    if len(results) == 1:
        return results[0].rewritten(lambda text: joined([text]))
    length = sum(result.length for result in results)
    before = [result.text if result.whole_text is None else result.whole_text for result in results]
    return Translation(
        text=joined([result.text for result in results]),
        score=sum(result.score * result.length for result in results) / length,
        length=length,
        passes=sum(result.passes for result in results),
        hypotheses=sum(result.hypotheses for result in results),
        truncated=any(result.truncated for result in results),
        oscillated=any(result.oscillated for result in results),
        fell_back=any(result.fell_back for result in results),
        whole_text=None if all(result.whole_text is None for result in results) else joined(before),
        broken=sum(result.broken for result in results),
        read_again=any(result.read_again for result in results),
    )
