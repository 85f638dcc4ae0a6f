"""Scores of a translated test set: BLEU, chrF, stutter, length ratio, exact match, non-words and toy corpus scores.

Every score has a signature, which says how it was computed; scores are comparable only if their signatures are equal.
Functions that score outputs raise a PadirError if there are none, or if the numbers of lines differ.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from padir import checks
from padir.errors import PadirError
from padir.text.languages import CHINESE, JAPANESE, KOREAN, UNSPACED_SCRIPTS, lacks_spaces, primary, script

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU

# A word is a run of letters and digits, possibly with apostrophes or hyphens inside; every other sign is its own match.
_WORDS = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")
# Every Han or kana character is a word; a number or a word in another script between them stays whole.
_HAN_OR_KANA = r"\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTERS = re.compile(rf"[{_HAN_OR_KANA}]|[^\W{_HAN_OR_KANA}]+|[^\w\s]")
# A word of `NonWords` is a run of letters, possibly with apostrophes inside; a word with a hyphen counts as several.
_LETTERS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


_AT_SPACES = ("13a", "intl", "none")  # SacreBLEU's tokenizers that find no words without spaces
_SAMPLE = 1_000  # references that are looked at


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of a metric, with the metric's name and a signature that says how the value was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f}  {self.signature}"


def bleu(hypotheses: Iterable[str], references: Iterable[str], target_language: str, tokenize: str = "") -> Score:
    """Corpus BLEU, 0 to 100, by SacreBLEU.

    Args:
      target_language: its script chooses the tokenizer: zh for Chinese characters, ja-mecab, ko-mecab, char for Thai,
        Lao, Khmer, Burmese and Tibetan, and 13a otherwise. Without MeCab (sacrebleu[ja], sacrebleu[ko]) char is taken,
        and the signature has tok:char.
      tokenize: a tokenizer by SacreBLEU's name, in place of the language's.

    Raises:
      PadirError: there is no such tokenizer, or it splits at spaces and the references have none.
    """
    return _bleu_and_ratio(hypotheses, references, target_language, tokenize)[0]


def _bleu_and_ratio(
    hypotheses: Iterable[str], references: Iterable[str], target_language: str, tokenize: str
) -> tuple[Score, Score]:
    """`bleu` and `length_ratio`, of one count of the tokens."""
    hypotheses, references = lined_up(hypotheses=hypotheses, references=references)
    metric = bleu_metric(target_language, tokenize, references=references)
    found = metric.corpus_score(hypotheses, [references])
    ratio = Score("length_ratio", found.ratio, f"nrefs:1|tok:{metric.tokenizer_signature}")
    return Score("bleu", found.score, metric.get_signature().format()), ratio


def chrf(hypotheses: Iterable[str], references: Iterable[str]) -> Score:
    """Corpus chrF2, 0 to 100, by SacreBLEU, over character n-grams up to 6, which need no tokenizer."""
    from sacrebleu.metrics.chrf import CHRF

    hypotheses, references = lined_up(hypotheses=hypotheses, references=references)
    metric = CHRF()
    value = metric.corpus_score(hypotheses, [references]).score
    return Score("chrf", value, metric.get_signature().format())


def stutter(hypotheses: Iterable[str], references: Iterable[str], target_language: str) -> Score:
    """Word-level stutter: words that follow themselves in the output more often than in the reference, per 1,000 words.

    Case is ignored. Punctuation separates words ("no, no" is no stutter). Repetitions in the reference are subtracted.
    In Chinese and Japanese the unit is the character. The metric follows section 3.3 of the paper (Li et al., ICML
    2024), which does not say how to normalise the count.

    >>> stutter(["the dog was walking walking home"], ["the dog was walking home"], "en").value  # 1 of 6 words
    166.66666666666666
    """
    hypotheses, references = lined_up(hypotheses=hypotheses, references=references)
    by_character = script(target_language) in CHINESE | JAPANESE
    repeats = num_words = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        output = _words(hypothesis, by_character)
        # Counter subtraction keeps positive counts only, so words that the reference repeats more often count 0.
        repeats += (_repeats(output) - _repeats(_words(reference, by_character))).total()
        num_words += sum(map(_is_word, output))
    value = 1000 * repeats / num_words if num_words else 0.0
    return Score("stutter", value, f"nrefs:1|case:lc|unit:{'char' if by_character else 'word'}|per:1000")


def length_ratio(
    hypotheses: Iterable[str], references: Iterable[str], target_language: str, tokenize: str = ""
) -> Score:
    """Number of tokens in all outputs, divided by the number of tokens in all references.

    A ratio below 1 means that the outputs are too short. The tokens are BLEU's, and the value is SacreBLEU's `ratio`.

    Raises:
      PadirError: all references are empty.
    """
    return _bleu_and_ratio(hypotheses, references, target_language, tokenize)[1]


def exact_match(hypotheses: Iterable[str], references: Iterable[str]) -> Score:
    """Percentage of outputs that equal their reference, ignoring white space at either end."""
    hypotheses, references = lined_up(hypotheses=hypotheses, references=references)
    equal = sum(h.strip() == r.strip() for h, r in zip(hypotheses, references, strict=True))
    return Score("exact_match", 100 * equal / len(references), "nrefs:1|case:mixed")


def toy_scores(sources: Iterable[str], hypotheses: Iterable[str]) -> dict[str, Score]:
    """Percentages of outputs that are right, mixed (parts of several right translations), or wrong.

    Sources are sentences of the corpus toy_de_en; the scores toy_right, toy_mixed and toy_wrong add up to 100.

    Raises:
      PadirError: a source is no sentence of the corpus's validation or test split.
    """
    from padir.data.toy import judge

    hypotheses, sources = lined_up(hypotheses=hypotheses, sources=sources)
    verdicts = collections.Counter(judge(s, h) for s, h in zip(sources, hypotheses, strict=True))
    return {
        f"toy_{verdict}": Score(f"toy_{verdict}", 100 * verdicts[verdict] / len(sources), "nrefs:all|case:mixed")
        for verdict in ("right", "mixed", "wrong")
    }


def score_all(
    sources: Iterable[str],
    hypotheses: Iterable[str],
    references: Iterable[str],
    source_language: str,
    target_language: str,
    task: str | None = None,
    tokenize: str = "",
) -> dict[str, Score]:
    """Computes bleu, chrf, stutter, length_ratio, exact_match and, for the task toy_de_en, the toy scores, by name.

    The toy corpus knows right translations of German sentences of its validation and test splits only. The other
    direction and the training split get no toy_* scores. Empty outputs count, too.

    Raises:
      PadirError: all references are empty.
    """
    hypotheses, references, sources = lined_up(hypotheses=hypotheses, references=references, sources=sources)
    of_bleu, ratio = _bleu_and_ratio(hypotheses, references, target_language, tokenize)
    scores = [
        of_bleu,
        chrf(hypotheses, references),
        stutter(hypotheses, references, target_language),
        ratio,
        exact_match(hypotheses, references),
    ]
    by_name = {score.name: score for score in scores}
    if (task, source_language, target_language) == ("toy_de_en", "de", "en"):
        from padir.data.toy import are_judged

        if are_judged(sources):
            by_name |= toy_scores(sources, hypotheses)
    return by_name


def lined_up(**lines: Iterable[str]) -> list[list[str]]:
    """The lines as lists; refuses lists of different lengths, and empty lists."""
    listed = {name: checks.strings(name, texts) for name, texts in lines.items()}
    counts = {name: len(texts) for name, texts in listed.items()}
    if len(set(counts.values())) > 1:
        got = " and ".join(f"{count} {name}" for name, count in counts.items())
        remedy = "check that no line was dropped"
        raise PadirError(f"expected one line for each sentence in all files, got {got}", remedy=remedy)
    if not any(counts.values()):
        raise PadirError("expected at least one sentence to score, got none", remedy="check the files or the split")
    return [*listed.values()]


def sentence_metric(name: str, target_language: str, *, unspaced: bool = False) -> Metric:
    """SacreBLEU's metric for scoring single sentences: "chrf", or "bleu" with effective order.

    BLEU splits `unspaced` texts (`lacks_spaces`) into characters if the language's tokenizer splits at spaces.
    """
    from sacrebleu.metrics.chrf import CHRF

    if name == "chrf":
        return CHRF()
    tokenize = "char" if unspaced and tokenizer_of(target_language) in _AT_SPACES else ""
    return bleu_metric(target_language, tokenize, effective_order=True)


def bleu_metric(
    target_language: str, tokenize: str = "", *, references: Sequence[str] = (), effective_order: bool = False
) -> BLEU:
    """SacreBLEU's BLEU with the tokenizer named, or one for the language's script, which must fit the references.

    Raises:
      PadirError: as `bleu`, or the tokenizer's model or package is not on this machine.
    """
    # The import is here because only scoring needs SacreBLEU.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    if tokenize:
        checks.one_of(BLEU.TOKENIZERS, tokenize=tokenize)
    name = tokenize or tokenizer_of(target_language)
    if name in SPM_MODELS:
        model = Path(SACREBLEU_DIR, "models", os.path.basename(SPM_MODELS[name]["url"]))
        if not model.exists():
            remedy = f"download {SPM_MODELS[name]['url']} as this file, or take another tokenizer, such as char"
            raise PadirError(f"the tokenizer {name} needs the file {model}", remedy=remedy)
    if references and not any(map(str.strip, references)):
        raise PadirError("all references are empty", remedy="check the file: there is nothing to compare with")
    language = primary(target_language)
    try:
        metric = BLEU(trg_lang=language, tokenize=name, effective_order=effective_order)
    except RuntimeError:  # SacreBLEU raises this error if MeCab is not installed
        if tokenize:
            remedy = f"pip install 'sacrebleu[{name[:2]}]', or take another tokenizer, such as char"
            raise PadirError(f"the tokenizer {name} needs MeCab", remedy=remedy) from None
        metric = BLEU(trg_lang=language, tokenize="char", effective_order=effective_order)
    if metric.tokenizer_signature in _AT_SPACES and lacks_spaces(references[:_SAMPLE]):
        raise PadirError(
            f"BLEU's tokenizer {metric.tokenizer_signature} splits at spaces, and the references have none",
            remedy="give the right language, or tokenize (--tokenize) zh, ja-mecab, char or flores200",
        )
    return metric


def tokenizer_of(language: str) -> str:
    """SacreBLEU's name of the tokenizer for the script of a language.

    >>> [tokenizer_of(code) for code in ("zho_Hant", "yue", "jpn_Jpan", "kor_Hang", "tha_Thai", "ja-Latn", "de")]
    ['zh', 'zh', 'ja-mecab', 'ko-mecab', 'char', '13a', '13a']
    """
    scripts = {**dict.fromkeys(UNSPACED_SCRIPTS, "char"), **dict.fromkeys(CHINESE, "zh")}
    scripts |= {**dict.fromkeys(JAPANESE, "ja-mecab"), **dict.fromkeys(KOREAN, "ko-mecab")}
    return scripts.get(script(language), "13a")


def _words(text: str, by_character: bool) -> list[str]:
    return (_CHARACTERS if by_character else _WORDS).findall(text.lower())


def _is_word(word: str) -> bool:
    return re.match(r"\w", word) is not None


def _repeats(words: list[str]) -> collections.Counter[str]:
    """The number of times that each word directly follows itself."""
    pairs = zip(words, words[1:], strict=False)
    return collections.Counter(word for word, following in pairs if word == following and _is_word(word))


@dataclasses.dataclass(frozen=True, eq=False)
class NonWords:
    """Metric of `padir evaluate`: percentage of outputs that hold a word outside a list.

    Case is ignored, and numbers are no words. Names and rare words of the references may also be outside the list. So
    compare with the value for the references (`of_references`).

    Attributes:
      known: the words of the list, case-folded.
      of_references: score the references in place of the outputs.
    """

    known: frozenset[str]
    of_references: bool = False

    @property
    def name(self) -> str:
        return "reference_non_words" if self.of_references else "non_words"

    def __call__(self, hypotheses: Iterable[str], references: Iterable[str]) -> Score:
        """The percentage, 0 to 100.

        >>> NonWords(frozenset({"a", "child"}))(["A child.", "a childild", "a 7"], ["a", "a", "a"]).value
        33.333333333333336
        """
        lines = checks.strings("lines", references if self.of_references else hypotheses)
        wrong = [not self.known.issuperset(words(line)) for line in lines]
        return Score(self.name, 100 * sum(wrong) / max(len(wrong), 1), self._signature)

    @functools.cached_property
    def _signature(self) -> str:
        digest = hashlib.sha256("\n".join(sorted(self.known)).encode()).hexdigest()[:8]
        return f"case:folded|list:{len(self.known)}|sha256:{digest}"


def words(line: str) -> list[str]:
    """The words of a line, case-folded.

    >>> words("Don’t re-read Chapter 7!")
    ["don't", 're', 'read', 'chapter']
    """
    return _LETTERS.findall(unicodedata.normalize("NFC", line.casefold()).replace("’", "'"))


def non_words(lines: Iterable[str], language: str = "") -> list[NonWords]:
    """The metric for the outputs and the metric for the references, with the known words of a text.

    Raises:
      PadirError: the language writes no spaces between words, or the text has no words.
    """
    if script(language) in UNSPACED_SCRIPTS:
        raise PadirError(
            f"non-words need a language with spaces between words, got {language!r}: leave known_words out"
        )
    known = frozenset(word for line in checks.each_string("lines", lines) for word in words(line))
    if not known:
        raise PadirError("the files of known words contain no words", remedy="name text files of the target language")
    return [NonWords(known), NonWords(known, of_references=True)]
