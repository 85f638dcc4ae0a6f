"""Spans that stand in a translation as they are, and the marks that take their places."""

import pytest
from support.refusals import refuses

from padir.text.spans import KINDS, MARKS, NUM_PLACEHOLDERS, Edit, check_kinds, edited, find, with_marks

# They can match nothing, some of them nothing else.
EMPTY = ("x*", "", r"\b", "^", "(?=x)", "(?<!x)", "(?!)", "x|y?", r"(x*)\1", "(?:x?){2,}")


def spans(text, *kinds):
    return [text[begin:end] for begin, end, _ in find(text, kinds)]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("tags", 'a <a href="x.html">b</a><br/> &nbsp;c <!-- d --> 3 < 4 > 2', 'a href="x.html"|/a|br/|!-- d --'),
        ("tags", "a<b und c>d <i\tk=v> <input disabled> <p q='1>", "i\tk=v|input disabled|p q='1"),
        ("tags", """<a t="x>y" b='>' c> <x y = "/>"/>""", """a t="x>y" b='>' c|x y = "/>"/"""),
        ("tags", "Datei %s: %(count)d von {0} in ${HOME}, %1, 50 % der", "%s|%(count)d|{0}|${HOME}|%1"),
        ("tags", "a {{b}}, {{ c.d('e') }}te {{{f}}} ${{ g }}", "{{b}}|{{ c.d('e') }}te|{{{f}}}|${{ g }}"),
        ("tags", "{% if a %} {# b #} {{n}te {%d {{c", "{% if a %}|{# b #}|{n}te|%d"),
        ("urls", "Siehe https://a.example/b?c=1, (http://x.org/y) www.z.de.", "https://a.example/b?c=1|http://x.org/y|www.z.de"),
        ("urls", "Mail an max.m+x@mail.example.org!", "max.m+x@mail.example.org"),
        ("numbers", "Am 3.10.1990 um 17:30 kosten 5 km 1.234,5 € und 20%.", "3.10.1990|17:30|5 km|1.234,5 €|20%"),
        ("numbers", "½ l, 2½ Tage, 2 ¼ km, 1⁄2 und ⅐-3¾, x½, ½x", "½|2½|2|¼ km|1⁄2|⅐-3¾"),
        ("numbers", "x264, A4, 4x, utf8 und 2010年", "2010"),
        ("[A-Z]{2,}", "NATO und UN, Ab", "NATO|UN"),
    ],
)  # fmt: skip
def test_each_kind_finds_its_spans(kind, text, expected):
    found = [span for span in spans(text, kind) if span != "&nbsp;"]
    assert [span.strip("<>") for span in found] == expected.split("|")


def test_earlier_kinds_win():
    text = '<a href="https://a.example/5">5</a>'
    assert spans(text, "tags", "urls", "numbers") == ['<a href="https://a.example/5">', "5", "</a>"]
    assert spans(text, "5", "numbers", "urls", "tags") == ['<a href="https://a.example/5">', "5", "</a>"]
    assert spans("Tom Sawyer 5", "Tom Sawyer", "Tom", r"\d") == ["Tom Sawyer", "5"]
    assert spans("ab <br> c", "tags", "b <b") == ["<br>"]  # the later kind begins first
    assert spans("1 2 3 4", "2 3", "1 2", "3 4") == ["2 3"]


def test_a_span_that_was_beaten_beats_none():
    assert spans("1 2 3 4", "3 4", "2 3", "1 2") == ["1 2", "3 4"]
    assert spans("a b c d", "a b c", "b", "c d", "b c d") == ["a b c"]  # the longest ones compete by their order
    assert spans("ab <br> c", "tags", "b <b", "ab", "c") == ["ab", "<br>", "c"]
    assert spans("a b c d", "d", "b c", "b", "a b c d") == ["a b c d"]


def test_what_contains_a_span_wins():
    text = "www.x.org/{id}?a=1&amp;b=%s http://x.org/&nbsp;/%20x <a href='www.x.org'> <!--www.x.org-->"
    expected = ["www.x.org/{id}?a=1&amp;b=%s", "http://x.org/&nbsp;/%20x", "<a href='www.x.org'>", "<!--www.x.org-->"]
    assert spans(text, *KINDS) == spans(text, "amp", *KINDS) == expected
    assert spans("Tom Sawyer", "Tom", "Tom Sawyer") == ["Tom Sawyer"]
    assert spans("4711 %(zahl)d", *KINDS) == ["4711", "%(zahl)d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ACMEs, XACME und ACME_5, ACME-Haus", "ACMEs|XACME|ACME_5|ACME"),
        ("ACME的 和ACME", "ACME|ACME"),
        ("ACMEACME {n}te %s5 {a}{b}x", "ACMEACME|{n}te|%s5|{a}{b}x"),
        ("un<b>glaub</b>lich &copy;x", "<b>|</b>|&copy;"),
        ("Gr&uuml;&szlig;e", ""),
        ("ein\tTab", "\t"),
    ],
)
def test_a_span_takes_in_its_word(text, expected):
    assert "|".join(spans(text, "tags", "ACME", "\t")) == expected


def test_nested_edits_write_nothing_twice():
    assert edited("abcdef", [Edit(1, 5, "X"), Edit(2, 3, "y")]) == "aXyf"
    assert edited("a<b<", [Edit(3, 4, "<")], {ord("<"): "&lt;"}) == "a&lt;b<"


def test_marks_stand_for_spans_of_both_sides_alone():
    source, target, counts = with_marks("Ich gab Tom 5 Äpfel, Tom gab 7.", "I gave Tom 5 apples, Tom gave 8.")
    a, b, c = MARKS[:3]
    assert (source, target) == (f"Ich gab {a} {b} Äpfel, {c} gab 7.", f"I gave {a} {b} apples, {c} gave 8.")
    assert counts == {"names": 2, "numbers": 1}
    assert with_marks("Tom schläft.", "Tom sleeps.")[:2] == ("Tom schläft.", "Tom sleeps.")  # a name begins no text


def test_no_pair_has_more_marks_than_there_are():
    text = " ".join(map(str, range(100, 120)))
    source, target, counts = with_marks(text, text, first=3)
    assert source == target and counts == {"numbers": NUM_PLACEHOLDERS}
    assert sorted(mark for mark in source if mark in MARKS) == sorted(MARKS)
    repeated = " ".join(["5"] * 17) + " 7"
    assert with_marks(repeated, repeated)[0] == repeated[:-1] + MARKS[0]  # all spans of a text, or none


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ("tag", "placeholders: there is no kind 'tag': did you mean 'tags'?"),
        ("(", "placeholders must be one of tags, urls, numbers, or a regular expression, got '(': correct the pattern"),
        *((each, "placeholders must be patterns that match at least one character, got ") for each in EMPTY),
    ],
)
def test_wrong_patterns_are_refused(kinds, message):
    refuses(check_kinds, message, [kinds])
