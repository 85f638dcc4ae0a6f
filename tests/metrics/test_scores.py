"""Scores that a person can check by hand."""

import math
import sys
import types

import pytest
from support.refusals import refuses

from padir.metrics import scores as metrics

REFERENCE = "the cat sat on the mat"


def test_bleu_of_one_wrong_word():
    """Of 6 words, 5 pairs, 4 triples and 3 quadruples, 5, 3, 2 and 1 are in the reference; lengths are equal."""
    score = metrics.bleu(["the cat sat on a mat"], [REFERENCE], "en")
    assert score.value == pytest.approx(100 * math.exp(sum(map(math.log, (5 / 6, 3 / 5, 2 / 4, 1 / 3))) / 4))


def test_a_short_sentence_has_its_own_largest_n_gram():
    """Corpus BLEU of two words is 0 or smoothed, because they have no 3-grams."""
    metric = metrics.sentence_metric("bleu", "en")
    assert metric.sentence_score("two words", ["two words"]).score == pytest.approx(100)
    assert metric.sentence_score("two cats", ["two words"]).score < 50


def test_bleu_counts_empty_hypotheses():
    """Half of the text is missing, the rest is perfect: only the brevity penalty exp(1 - 12/6) is left."""
    score = metrics.bleu([REFERENCE, ""], [REFERENCE, REFERENCE], "en")
    assert score.value == pytest.approx(100 * math.exp(-1))


TOKENIZERS = {"13a": "en ro", "zh": "zh zh-CN zh_Hans zho_Hant cmn yue_Hant", "char": "tha_Thai lo khm my"}
TOKENIZERS |= {"ja-mecab char": "ja jpn_Jpan", "ko-mecab char": "ko kor_Hang"}


@pytest.mark.parametrize(
    ("language", "tokenizers"), [(code, names.split()) for names, codes in TOKENIZERS.items() for code in codes.split()]
)
def test_bleu_tokenizer_follows_the_language(language, tokenizers):
    signature = metrics.bleu(["a"], ["a"], language).signature
    assert any(f"|tok:{tokenizer}" in signature for tokenizer in tokenizers), signature
    assert "version:" in signature


def test_bleu_splits_chinese_into_characters():
    """Without the tokenizer, a sentence is one word and one wrong character leaves no match."""
    assert metrics.bleu(["我们今天去公园。"], ["我们今天去学校。"], "zh").value > 40


def test_a_tokenizer_may_be_named_and_tells_its_name():
    assert "|tok:char|" in metrics.bleu(["a"], ["a"], "en", "char").signature
    assert "|tok:intl|" in metrics.score_all(["a"], ["a"], ["a"], "de", "en", tokenize="intl")["bleu"].signature
    assert metrics.sentence_metric("bleu", "tha_Thai").tokenizer_signature == "char"


@pytest.mark.parametrize(
    ("language", "tokenize", "message"),
    [
        ("en", "words", "tokenize must be one of none, zh, 13a"),
        ("en", "flores200", "the tokenizer flores200 needs the file ... flores200sacrebleuspm: download https"),
        ("zh", "13a", "BLEU's tokenizer 13a splits at spaces, and the references have none: ... zh, ja-mecab, char"),
        ("en", "", "BLEU's tokenizer 13a splits at spaces"),
        ("th", "intl", "BLEU's tokenizer intl splits at spaces"),
    ],
)
def test_tokenizers_that_cannot_be_used_are_refused(monkeypatch, tmp_path, language, tokenize, message):
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    chinese = ["我们今天去公园。", "ฉันไปโรงเรียนวันนี้"]
    for score in (metrics.bleu, metrics.length_ratio):
        refuses(score, message, chinese, chinese, language, tokenize)
    assert metrics.bleu(["我们 今天 去 公园"], ["我们 今天 去 公园"], "zh", "13a").value == pytest.approx(100)


def test_sacrebleus_own_warnings_pass_through(caplog):
    metrics.bleu(["a b ."] * 100, ["a b ."] * 100, "en")
    assert any("forgot to detokenize" in message for message in caplog.messages)


def test_chrf():
    assert metrics.chrf(["abc"], ["abc"]).value == pytest.approx(100)
    assert metrics.chrf(["abc"], ["xyz"]).value == 0
    # Unigrams: precision 2/2, recall 2/4; bigrams: 1/1 and 1/3. Averaged over the orders that occur: P 1, R 5/12.
    precision, recall = 1.0, (2 / 4 + 1 / 3) / 2
    expected = 100 * 5 * precision * recall / (4 * precision + recall)
    assert metrics.chrf(["ab"], ["abcd"]).value == pytest.approx(expected)
    assert "nc:6" in metrics.chrf(["ab"], ["abcd"]).signature


@pytest.mark.parametrize(
    ("hypothesis", "reference", "language", "repeats", "words"),
    [
        ("the dog was walking walking home", "the dog was walking home", "en", 1, 6),
        ("The the dog", "The dog", "en", 1, 3),
        ("he had had had enough", "he had had enough", "en", 1, 5),  # the reference repeats it once itself
        ("he had had enough", "he had had enough", "en", 0, 4),
        ("home home", "had had had", "en", 1, 2),  # what the reference repeats is no credit for another word
        ("no, no, no", "no", "en", 0, 3),
        ("it is is.", "it is.", "en", 1, 3),
        ("wait ...", "wait", "en", 0, 1),
        ("don't don't go", "don't go", "en", 1, 3),
        ("a well-known known man", "a well-known man", "en", 0, 4),
        ("sehr sehr gut", "gut", "de", 1, 3),
        ("我我喜欢茶", "我喜欢茶", "zh", 1, 5),
        ("妈妈喜欢茶", "妈妈喜欢茶", "zh", 0, 5),
        ("11 米 hello", "11 米 hello", "zh", 0, 3),  # neither 1 1 nor l l is a stutter
        ("2011年年", "2011年", "zh-CN", 1, 3),
        ("ねこねこね", "ねこ", "ja", 0, 5),
        ("ねここ", "ねこ", "ja", 1, 3),
    ],
)
def test_stutter(hypothesis, reference, language, repeats, words):
    score = metrics.stutter([hypothesis], [reference], language)
    assert score.value == pytest.approx(1000 * repeats / words)


def test_stutter_is_pooled_over_the_corpus():
    """1 repeat in 10 words, not the mean of 500 and 0; a repeat in one reference does not excuse another sentence."""
    hypotheses = ["so so", "one two three four five six seven eight"]
    assert metrics.stutter(hypotheses, ["so", "so so"], "en").value == pytest.approx(100)
    assert metrics.stutter([""], ["x"], "en").value == 0
    assert "unit:word" in metrics.stutter(["a"], ["a"], "en").signature
    assert "unit:char" in metrics.stutter(["a"], ["a"], "zh").signature


def test_length_ratio_is_in_bleu_tokens():
    assert metrics.length_ratio(["one, two", ""], ["one two", "three four"], "en").value == pytest.approx(3 / 4)
    assert metrics.length_ratio(["一二三"], ["一二"], "zh").value == pytest.approx(3 / 2)
    refuses(metrics.length_ratio, "references are empty", ["one"], [""], "en")


def test_exact_match_ignores_outer_space_only():
    score = metrics.exact_match(["A b. ", "a b.", "A  b.", ""], ["A b.", "A b.", "A b.", ""])
    assert score.value == 50


@pytest.fixture
def fake_toy(monkeypatch):
    """A judge whose verdict is the output itself."""
    module = types.ModuleType("padir.data.toy")
    module.judge = lambda source, output: output  # type: ignore[attr-defined]
    module.are_judged = lambda sources: "drei" not in sources  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "padir.data.toy", module)


def test_toy_scores_are_shares_of_the_verdicts(fake_toy):
    scores = metrics.toy_scores(["x"] * 8, ["right"] * 5 + ["mixed"] * 2 + ["wrong"])
    assert {name: score.value for name, score in scores.items()} == {
        "toy_right": 62.5,
        "toy_mixed": 25.0,
        "toy_wrong": 12.5,
    }


def test_score_all_names_its_figures(fake_toy):
    general = {"bleu", "chrf", "stutter", "length_ratio", "exact_match"}
    lines = (["eins", "zwei"], ["right", "mixed"], ["right", "wrong"])
    assert set(metrics.score_all(*lines, "de", "en")) == general
    assert set(metrics.score_all(*lines, "en", "de", "toy_de_en")) == general
    assert set(metrics.score_all(["eins", "drei"], *lines[1:], "de", "en", "toy_de_en")) == general  # not judged
    toy = metrics.score_all(*lines, "de", "en", "toy_de_en")
    assert set(toy) == general | {"toy_right", "toy_mixed", "toy_wrong"}
    assert all(name == score.name and score.signature for name, score in toy.items())
    assert (toy["exact_match"].value, toy["toy_mixed"].value) == (50, 50)


@pytest.mark.parametrize(
    "score",
    [
        lambda h, r: metrics.bleu(h, r, "en"),
        lambda h, r: metrics.chrf(h, r),
        lambda h, r: metrics.stutter(h, r, "en"),
        lambda h, r: metrics.length_ratio(h, r, "en"),
        lambda h, r: metrics.exact_match(h, r),
        lambda h, r: metrics.toy_scores(r, h),
        lambda h, r: metrics.score_all(h, h, r, "de", "en"),
    ],
)
def test_unequal_or_no_lines_are_refused(score, fake_toy):
    refuses(score, "2 hypotheses and 1", ["a", "b"], ["a"])
    refuses(score, "at least one sentence", [], [])


def test_toy_scores_by_the_grammar():
    from padir.data.toy import ToyDeEn

    pairs = list(ToyDeEn(num_train=2000, num_validation=1, num_test=20).pairs("test"))
    sources, targets = zip(*pairs, strict=True)
    assert metrics.toy_scores(sources, targets)["toy_right"].value == 100
    scores = metrics.toy_scores(sources, [*targets[:-1], ""])
    assert (scores["toy_right"].value, scores["toy_wrong"].value) == (95, 5)


TEXT = ["Two children play.", "The children’s dog plays, and two well-fed cats."]
OUTPUTS = ["two childrenren play play", "THE DOG, cats 12", "well-fed childrenren", ""]
REFERENCES = ["a dog", "two children", "the cats", "two dogs"]


def test_outputs_and_references():
    scores = [metric(OUTPUTS, REFERENCES) for metric in metrics.non_words(TEXT)]
    assert [(score.name, score.value) for score in scores] == [("non_words", 50.0), ("reference_non_words", 50.0)]
    assert scores[0].signature == "case:folded|list:11|sha256:a7f10c67"  # of the sorted words, one a line


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (["It’s re-read", "IT'S Straße"], {"it's", "re", "read", "strasse"}),  # case is folded, and hyphens part words
        (["tre\u0300s"], {"tr\u00e8s"}),
    ],
)
def test_what_is_a_word(text, known):
    assert metrics.non_words(text)[0].known == known


def test_text_without_words_or_spaces_is_refused():
    refuses(metrics.non_words, "spaces between words, got 'zh'", ["你好"], "zh")
    refuses(metrics.non_words, "contain no words", ["12 ...", ""])
