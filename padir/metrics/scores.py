"""Scores of a translated test set: BLEU, chrF, word-level stutter, length ratio, exact match and toy corpus scores.

Every score has a signature, which says how it was computed; scores are comparable only if their signatures are equal.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from padir.errors import PadirError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU

# A word is a run of letters and digits, possibly with apostrophes or hyphens inside; every other sign is its own match.
_WORDS = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")
# Every Han or kana character is a word; a number or a word in another script between them stays whole.
_HAN_OR_KANA = r"\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTERS = re.compile(rf"[{_HAN_OR_KANA}]|[^\W{_HAN_OR_KANA}]+|[^\w\s]")
_WRITTEN_WITHOUT_SPACES = ("zh", "ja")


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of a metric, with the metric's name and a signature that says how the value was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}  {self.signature}"


def bleu(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> Score:
    """Corpus BLEU, 0 to 100, by SacreBLEU with the tokenizer that SacreBLEU recommends for the target language.

    Japanese and Korean need MeCab (sacrebleu[ja], sacrebleu[ko]); without MeCab they are scored by character, and the
    signature has tok:char.

    Raises:
      PadirError: there are no sentences, or not as many hypotheses as references.
    """
    _check_lengths(hypotheses=hypotheses, references=references)
    metric = bleu_metric(target_language)
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("bleu", value, metric.get_signature().format())


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2, 0 to 100, by SacreBLEU, over character n-grams up to 6, which need no tokenizer.

    Raises:
      PadirError: there are no sentences, or not as many hypotheses as references.
    """
    from sacrebleu.metrics.chrf import CHRF

    _check_lengths(hypotheses=hypotheses, references=references)
    metric = CHRF()
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("chrf", value, metric.get_signature().format())


def stutter(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> Score:
    """Word-level stutter: words that follow themselves in the output more often than in the reference, per 1,000 words.

    Case is ignored. Punctuation is no word but separates words ("no, no" is no stutter). Repetitions that are also in
    the reference are not counted. In Chinese and Japanese the unit is the character. The metric follows section 3.3 of
    the paper (Li et al., ICML 2024), which does not say how to normalise the count.

    >>> stutter(["the dog was walking walking home"], ["the dog was walking home"], "en").value  # 1 of 6 words
    166.66666666666666

    Raises:
      PadirError: there are no sentences, or not as many hypotheses as references.
    """
    _check_lengths(hypotheses=hypotheses, references=references)
    by_character = _written_by_character(target_language)
    repeats = num_words = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        output = _words(hypothesis, by_character)
        # Counter subtraction keeps positive counts only, so words that the reference repeats more often count 0.
        repeats += (_repeats(output) - _repeats(_words(reference, by_character))).total()
        num_words += sum(map(_is_word, output))
    value = 1000 * repeats / num_words if num_words else 0.0
    return Score("stutter", value, f"nrefs:1|case:lc|unit:{'char' if by_character else 'word'}|per:1000")


def length_ratio(hypotheses: Sequence[str], references: Sequence[str], target_language: str) -> Score:
    """Number of tokens in all outputs, divided by the number of tokens in all references.

    A ratio below 1 means that the outputs are too short.

    The tokens are BLEU's, and the value is SacreBLEU's `ratio`.

    Raises:
      PadirError: there are no sentences, not as many hypotheses as references, or all references are empty.
    """
    _check_lengths(hypotheses=hypotheses, references=references)
    metric = bleu_metric(target_language)
    num_output, num_reference = (
        sum(len(metric.tokenizer(line).split()) for line in lines) for lines in (hypotheses, references)
    )
    if num_reference == 0:
        raise PadirError("all references are empty", remedy="check the file: there is nothing to compare with")
    return Score("length_ratio", num_output / num_reference, f"nrefs:1|tok:{metric.tokenizer_signature}")


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of outputs that equal their reference, ignoring white space at either end.

    Raises:
      PadirError: there are no sentences, or not as many hypotheses as references.
    """
    _check_lengths(hypotheses=hypotheses, references=references)
    equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
    return Score("exact_match", 100 * equal / len(references), "nrefs:1|case:mixed")


def toy_scores(sources: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Score]:
    """Percentages of outputs that are right, mixed (parts of several right translations), or wrong.

    Sources are sentences of the corpus toy_de_en; the scores toy_right, toy_mixed and toy_wrong add up to 100.

    Raises:
      PadirError: there are no sentences, not as many hypotheses as sources, or a source is not of the toy grammar.
    """
    from padir.data.toy import judge

    _check_lengths(hypotheses=hypotheses, sources=sources)
    verdicts = collections.Counter(judge(s, h) for s, h in zip(sources, hypotheses, strict=True))
    return {
        f"toy_{verdict}": Score(f"toy_{verdict}", 100 * verdicts[verdict] / len(sources), "nrefs:all|case:mixed")
        for verdict in ("right", "mixed", "wrong")
    }


def score_all(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    source_language: str,
    target_language: str,
    task: str | None = None,
) -> dict[str, Score]:
    """Computes bleu, chrf, stutter, length_ratio, exact_match and, for the task toy_de_en, the toy scores, by name.

    The grammar of the toy corpus translates from German only, so the other direction gets no toy_* scores. Empty
    outputs count as well.

    Raises:
      PadirError: there are no sentences, sources, hypotheses and references differ in number, or all references are
        empty.
    """
    _check_lengths(hypotheses=hypotheses, references=references, sources=sources)
    scores = [
        bleu(hypotheses, references, target_language),
        chrf(hypotheses, references),
        stutter(hypotheses, references, target_language),
        length_ratio(hypotheses, references, target_language),
        exact_match(hypotheses, references),
    ]
    by_name = {score.name: score for score in scores}
    if (task, source_language, target_language) == ("toy_de_en", "de", "en"):
        by_name |= toy_scores(sources, hypotheses)
    return by_name


def count_words(text: str, language: str) -> int:
    """Number of words without punctuation, as `stutter` counts them; in Chinese and Japanese, number of characters.

    >>> count_words("Ein Mann, 3 Hunde.", "de")
    4
    """
    return sum(map(_is_word, _words(text, _written_by_character(language))))


def _written_by_character(language: str) -> bool:
    return _primary_language(language) in _WRITTEN_WITHOUT_SPACES


def _check_lengths(**lines: Sequence[str]) -> None:
    counts = {name: len(texts) for name, texts in lines.items()}
    if len(set(counts.values())) > 1:
        got = " and ".join(f"{count} {name}" for name, count in counts.items())
        raise PadirError(
            f"expected one line for each sentence in all files, got {got}", remedy="check that none was dropped"
        )
    if not any(counts.values()):
        raise PadirError("expected at least one sentence to score, got none", remedy="check the files or the split")


def _primary_language(language: str) -> str:
    """The language of a code with a region or script, such as zh for zh-CN or zh_Hans."""
    return re.split("[-_]", language.lower(), maxsplit=1)[0]


def sentence_metric(name: str, target_language: str) -> Metric:
    """SacreBLEU's metric for scoring single sentences: "chrf", or "bleu" with effective order."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF() if name == "chrf" else bleu_metric(target_language, effective_order=True)


def bleu_metric(target_language: str, effective_order: bool = False) -> BLEU:
    """SacreBLEU's BLEU with its recommended tokenizer for the language, or by character where MeCab is missing."""
    # The import is here because only scoring needs SacreBLEU.
    from sacrebleu.metrics.bleu import BLEU

    language = _primary_language(target_language)
    try:
        return BLEU(trg_lang=language, effective_order=effective_order)
    except RuntimeError:  # SacreBLEU raises this error if MeCab is not installed
        return BLEU(trg_lang=language, tokenize="char", effective_order=effective_order)


def _words(text: str, by_character: bool) -> list[str]:
    return (_CHARACTERS if by_character else _WORDS).findall(text.lower())


def _is_word(word: str) -> bool:
    return re.match(r"\w", word) is not None


def _repeats(words: list[str]) -> collections.Counter[str]:
    """The number of times that each word directly follows itself."""
    pairs = zip(words, words[1:], strict=False)
    return collections.Counter(word for word, following in pairs if word == following and _is_word(word))
