"""Paragraphs are split into sentences, and joined as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses

from padir.text.sentences import Paragraph


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("de", "Guten Morgen!\nWie geht es dir?", ["Guten Morgen!", "Wie geht es dir?"]),
        (
            "de",
            "Dr. Müller kommt am 3. Oktober um 10 Uhr, z. B. mit dem Zug. Gut.",
            ["Dr. Müller kommt am 3. Oktober um 10 Uhr, z. B. mit dem Zug.", "Gut."],
        ),
        ("en", "Mr. Smith paid $3.50, i.e. too much. Really?", ["Mr. Smith paid $3.50, i.e. too much.", "Really?"]),
        ("ro", "Bună ziua! Ce mai faci?", ["Bună ziua!", "Ce mai faci?"]),
        ("zh", "你好！你好吗？我很好。", ["你好！", "你好吗？", "我很好。"]),
        ("numbers", "One two. Three.", ["One two.", "Three."]),
        ("de", "A\xa0. Gut! Ja.", ["A\xa0. Gut!", "Ja."]),
        ("de", " \t ", []),
        ("de", "", []),
    ],
)
def test_sentences_of_languages(language, text, sentences):
    assert list(Paragraph.split(text, language).sentences) == sentences


@given(st.text(st.sampled_from("aÄD. !?\n\t„“。！3\u2028\x85\x00"), max_size=30), st.sampled_from(["de", "en", "ro"]))
def test_sentences_joined_are_the_text(text, language):
    paragraph = Paragraph.split(text, language)
    assert len(paragraph.gaps) == len(paragraph.sentences) + 1 and not "".join(paragraph.gaps).strip()
    assert "".join(part for pair in zip(("", *paragraph.sentences), paragraph.gaps) for part in pair) == text  # noqa: B905
    if paragraph.sentences and "" not in paragraph.gaps[1:-1]:
        assert paragraph.joined(paragraph.sentences, "en") == text


def test_spaces_come_and_go_with_the_language():
    assert Paragraph.split("你好！再见。", "zh").joined(["Hello!", "Goodbye."], "en") == "Hello! Goodbye."
    assert Paragraph.split("Hello! Bye.\nNo.", "en").joined(["你好！", "再见。", "不。"], "zh") == "你好！再见。\n不。"


def test_no_sentence_ends_within_a_span():
    text = "Guten Tag. Hallo. Welt. Ende."
    assert Paragraph.split(text, "de").sentences == ("Guten Tag.", "Hallo.", "Welt.", "Ende.")
    paragraph = Paragraph.split(text, "de", kinds=["Hallo. Welt"])
    assert paragraph.sentences == ("Guten Tag.", "Hallo. Welt.", "Ende.")
    assert paragraph.joined(paragraph.sentences, "de") == text


def test_white_space_alone_becomes_nothing():
    assert Paragraph.split(" \n ", "de").joined([], "en") == ""


def test_surrogates_are_refused():
    refuses(Paragraph.split, "without surrogates", "Gut\udcff Tag.", "de")


class TestWindows:
    """The rules take a time that grows with the square of a text, so that they see a part at a time."""

    def test_a_long_text_is_read_once_or_twice(self, monkeypatch):
        import sentencex

        seen, segment = [], sentencex.segment

        def counted(language, text):
            seen.append(len(text))
            return segment(language, text)

        monkeypatch.setattr(sentencex, "segment", counted)
        for text in ("!'" * 20_000, "a " * 20_000, "\n" * 40_000, "Ja. " * 10_000, "a. " + "b" * 40_000):
            seen.clear()
            Paragraph.split(text, "de")
            assert sum(seen) <= 2 * len(text) and max(seen) <= len(text) / 4

    def test_its_sentences_are_those_of_the_whole(self, monkeypatch):
        text = " ".join(f"Der {n}. Gast kam um {n % 24} Uhr, z. B. mit Dr. Alt!" + "\n" * (n % 3) for n in range(60))
        whole = Paragraph.split(text, "de")
        assert len(whole.sentences) > 40
        for window in (200, 333, 500):
            monkeypatch.setattr("padir.text.sentences._WINDOW", window)
            assert Paragraph.split(text, "de") == whole

    def test_a_sentence_longer_than_a_window_is_one(self, monkeypatch):
        monkeypatch.setattr("padir.text.sentences._WINDOW", 20)
        text = "Ja. Ein Satz, der viel länger ist als das Fenster, endet erst hier. Nein."
        assert Paragraph.split(text, "de").sentences[1] == text[4:-6]
