import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.odd_text import odd_lines

from padir.text.normalise import Normalised, normalised


@pytest.mark.parametrize(
    "text, read",
    [
        # Blanks and letters.
        ("\tWo ist er?", Normalised("Wo ist er?", before="\t")),
        ("Wo\u00a0ist\u200ber? \u3000", Normalised("Wo ist er?", after=" \u3000")),
        ("Wo \t ist er?", Normalised("Wo ist er?")),
        ("Wo  ist er?", Normalised("Wo  ist er?")),  # a doubled space is not odd
        ("scho\u0308n", Normalised("schön")),
        ("Schiff\u00adfahrt\ufeff", Normalised("Schifffahrt", after="\ufeff")),
        ("Hallo \u200c\u200d", Normalised("Hallo \u200c", after="\u200d")),
        ("Ｚａｈｌ ａ\u0308０９，ＯＫ！", Normalised("Zahl ä09，OK！")),  # punctuation keeps its width
        ("eﬀ ﬁn ﬂ ﬃ ﬄ ﬅ ﬆ", Normalised("eff fin fl ffi ffl st st")),
        # Marks around a sentence, and within it.
        ("- [x] Milch", Normalised("Milch", before="- [x] ")),
        ("## **Wo ist er?**", Normalised("Wo ist er?", before="## **", after="**")),
        ("***`a b`***", Normalised("a b", before="***`", after="`***")),
        ("> > b) Tee ✓", Normalised("Tee", before="> > b) ", after=" ✓")),
        ("*Guten* Morgen!", Normalised("Guten Morgen!")),
        ("Das ist _sehr_ `gut`.", Normalised("Das ist sehr gut.")),
        ("# Wo ist #1? ##", Normalised("Wo ist #1?", before="# ", after=" ##")),
        ("## **Wo ist C#** # ✓", Normalised("Wo ist C#", before="## **", after="** # ✓")),
        ("*a* und *b*", Normalised("a und b")),
        # Marks without a partner.
        ("**Wo ist er?", Normalised("Wo ist er?", before="**")),
        ("Wo ist *er*?**", Normalised("Wo ist er?", after="**")),
        ("- ~~Wo ist er? ", Normalised("Wo ist er?", before="- ~~", after=" ")),
        ("***Wo ist er? **", Normalised("Wo ist er?", before="***", after=" **")),
        ("*`Wo ist er?", Normalised("Wo ist er?", before="*`")),
        ("`**Wo ist er?`", Normalised("Wo ist er?", before="`**", after="`")),
        ("**Wo** ist er?_", Normalised("Wo ist er?", after="_")),
        ("``Das geht nicht", Normalised("Das geht nicht", before="``")),
        ("Nur heute.*", Normalised("Nur heute.", after="*")),
        ("*.py ist neu", Normalised("*.py ist neu")),
        ("_ fehlt", Normalised("_ fehlt")),
        ("**kwargs und **args", Normalised("**kwargs und **args")),
        ("Wo ist **er?", Normalised("Wo ist **er?")),
        ("****Wo ist er?", Normalised("****Wo ist er?")),
        # No marks.
        ("-5 Grad", Normalised("-5 Grad")),
        ("#eins", Normalised("#eins")),
        ("2 * 3 * 4 ist viel", Normalised("2 * 3 * 4 ist viel")),
        ("__init__ und snake_case_x", Normalised("__init__ und snake_case_x")),
        ("`a' und `b'", Normalised("`a' und `b'")),
        ("Preis* und **kwargs", Normalised("Preis* und **kwargs")),
        ("3. Platz", Normalised("3. Platz")),
        # Without a letter.
        ("", Normalised("")),
        (" \u200b\t", Normalised("")),
        ("**--- 😀", Normalised("", before="**--- 😀")),
        ("a) 5", Normalised("", before="a) 5")),
        # Capitals.
        ("WO IST ER?", Normalised("Wo ist er?", capitals=True)),
        ("ACHTUNG!", Normalised("Achtung!", capitals=True)),
        ("DIE GRÖẞE", Normalised("Die größe", capitals=True)),
        ("NATO", Normalised("NATO")),
        ("A B", Normalised("A B")),
        ("Achtung: WO IST ER?", Normalised("Achtung: WO IST ER?")),
        ("我们 OK OK", Normalised("我们 OK OK")),  # characters without case are no capitals
    ],
)
def test_what_a_model_reads(text, read):
    assert normalised(text) == read


def test_words_in_capitals_get_the_case_that_the_vocabulary_knows():
    known = {"Hund", "NATO", "der", "und", "sagt"}
    asked = []

    def count_pieces(words):
        asked.append(words)
        return [1 if word in known else len(word) for word in words]

    read = normalised("DER HUND UND DIE NATO UND DER HUND", count_pieces=count_pieces)
    assert len(asked) == 1 and len(asked[0]) == 3 * 5  # one call, for the cases of each word once
    assert read.text.removesuffix(" und der Hund") == "DER Hund und die NATO".replace("DER", "Der")


def test_a_translation_gets_back_what_stood_around_its_source():
    assert normalised("\t- **WO IST ER?** 😀").restored("Where is he?") == "\t- **WHERE IS HE?** 😀"
    assert normalised("> Wo ist er? ").restored("Where is he?") == "> Where is he? "
    assert normalised("---").restored("") == "---"


def test_spans_stay_as_they_are_inside_the_text_and_in_capitals():
    text = "- WO IST *DER* {Name_x} VON http://a.b/*c*/o\u0308?"
    read = normalised(text, ["tags", "urls"])
    assert read.text == "Wo ist der {Name_x} von http://a.b/*c*/o\u0308?"
    assert (
        read.restored("where is {Name_x} of http://a.b/c?", ["tags", "urls"]) == "- WHERE IS {Name_x} OF http://a.b/c?"
    )
    assert (
        normalised("\ufdd0{a} b\ufdd0", ["tags"]).text == "{a} b"
    )  # the noncharacter that stands for spans is a blank


def test_words_before_the_sentence():
    assert [normalised(text).words_before for text in ["a b", "- a", "- **a**", "> - a", "\ta"]] == [0, 1, 1, 2, 0]


plain_words = st.text(string.ascii_letters + "äöüß", min_size=1, max_size=9).filter(lambda word: not word.isupper())


@given(st.lists(plain_words, min_size=1), st.sampled_from([".", "!", "?", ", ja.", ""]))
def test_an_ordinary_sentence_is_read_as_it_is(words, end):
    text = " ".join(words) + end
    assert normalised(text) == Normalised(text)


def test_the_plain_form_has_nothing_odd():
    odd = {*"\t\u00a0\u200b\u2009\u3000\x0b\u2028\u00ad\u2060\ufeff\u200e"}
    for line in odd_lines(2_000):
        read = normalised(line)
        assert odd.isdisjoint(read.text) and unicodedata.is_normalized("NFC", read.text), line
        assert read.text == "" or read.text == read.text.strip(), line
        letters = sorted(filter(str.isalpha, unicodedata.normalize("NFKC", line).casefold()))
        kept = sorted(filter(str.isalpha, unicodedata.normalize("NFKC", read.restored(read.text)).casefold()))
        assert kept == letters, line
