"""Marks in place of spans: what a model reads, and the spans back in its translation."""

import collections
import random
import re
import sys

import pytest
from support.marked_sentences import KINDS, SPANS, VOID, hostile, sentence
from support.markup import well_formed

from padir.text.marks import Placing, mark, units
from padir.text.spans import MARKS, Edit, edited

ALL = ("tags", "urls", "numbers")


def links(source, target, pairs):
    """Links of a translation's units, given as words of both sides; other units are linked to the first unit."""
    own, words = ([text[begin:end] for begin, end in units(text)] for text in (target, source))
    known = dict(pair.split("=") for pair in pairs.split())
    return [words.index(known[word]) if word in known else 0 for word in own]


def finished(text, translation, pairs="", kinds=ALL, placeholders=False):
    marked = mark(text, kinds, placeholders)
    return marked.finished(translation, links(marked.text, translation, pairs))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Klick <b>hier</b>.", "Klick hier."),
        ("Siehe www.x.org und a@b.de.", "Siehe X und Z."),
        ("Vitamin X: www.x.org", "Vitamin X: Z"),
        ("www.x.org hat X", "Z hat X"),
        ("Um 17:30 an 5 km, 12345678901 und 5 und 5, 70", "Um X an Z, Q und Y und V, 70"),
        (" ".join(map(str, range(100, 109))) + " eins", "X Z Q Y V W K J 12 eins"),
        ("Eins.<br>Zwei <br/> drei", "Eins. Zwei drei"),
        ("www.x.org<br>eins.<br><hr>Zwei", "X eins. Zwei"),
        ("<b>www.x.org</b> 5", ""),
        ("<b>www.x.org</b> heute", "X heute"),
        ("Guten Tag", None),
        ("5 &lt; 6 &amp; M&uuml;ll &#39;ab&#x27; &quot;c&quot;", "5 < 6 & Müll 'ab' \"c\""),
        ("ab&nbsp;cd &copy; Ufer&shy;weg &foo;", "ab cd Uferweg "),
        ("&amp;auml; &lt;b&gt;fett&lt;/b&gt;", "&auml; X fett Z"),
        ("eins</li><li>zwei.</b>Drei (<b>vier</b>)", "eins zwei. Drei (vier)"),
        ("un<b>glaub</b>lich <i>{n}</i>te{m} auf Rad<br>{n}", "unglaublich X Z auf Rad Q"),
        ("{a}{b} {n}te Xaver{n}s {n}年", "X Z Q Y年"),
        ("Guten Tag &" + "a" * 5000 + ";", None),
    ],
)
def test_stand_ins_of_models_without_placeholders(text, expected):
    marked = mark(text, ALL, placeholders=False)
    assert (marked and marked.text) == expected


def test_placeholders_of_models_that_know_them():
    marked = mark(f"<b>Tom</b> {MARKS[3]}", ("tags", "Tom"), placeholders=True)
    assert marked.text == "" and len(marked.edits) == 4  # no word beside the spans
    marked = mark(f"<b>Tom</b> isst {MARKS[3]} 5", ("tags", "numbers", "Tom"), placeholders=True)
    assert marked.marks == ("", MARKS[0], "", MARKS[1], MARKS[2])  # tags are taken out
    text = "ab " + " ".join(map(str, range(100, 120)))
    assert mark(text, ALL, placeholders=True).marks == (*MARKS, "X", "Z", "Q", "Y")


def test_a_letter_in_a_compound_is_no_mark():
    marked = mark("Röntgenbild: siehe www.x.org", ALL, False)
    assert marked.missing("X-ray: see this") and not marked.missing("X-ray: see X")
    assert marked.finished("X-ray: see X") == "X-ray: see www.x.org"
    assert not mark("120 Jahre alt", ALL, False).missing("X-year-old")  # a number joins words in English
    assert not mark("die Zeta-Seite", ["Zeta"], False).missing("the X-page")


@pytest.mark.parametrize(
    ("text", "faults"),
    [("X at 17", 0), ("X X at 17", 0), ("X at 17 17", 0), ("17 X 17", 1), ("at", 2), ("See 17", 1)]
    + [("Xs at 17 X", 0), ("X at 175", 1), ("X 2.17", 1), ("X at 17.", 0)],
)
def test_faults_are_missing_spans_and_numbers_that_stay_twice(text, faults):
    assert mark("Siehe www.x.org um 17", ALL, False).faults(text) == faults


def test_a_translation_ends_at_the_place_of_its_first_missing_mark():
    marked = mark("Tom liest www.x.org und a@b.de heute.", ALL, False)
    today = "Tom reads today"
    assert marked.begun(today, links(marked.text, today, "Tom=Tom reads=liest today=X")) == "Tom reads X"
    text = "Tom reads and Z."
    assert [edit.text for edit in marked.missing(text)] == ["www.x.org"]
    assert marked.begun(text, links(marked.text, text, "Tom=Tom reads=liest and=und Z=Z .=.")) == "Tom reads X"


def test_copies_are_left_out_and_lost_words_placed():
    source = "Siehe www.x.org heute"
    assert finished(source, "See X X today") == "See www.x.org  today"
    assert finished(source, "See Hex today", "Hex=X") == "See www.x.org today"  # in place of what translates the mark
    assert finished(source, "See today.", "See=Siehe today=heute") == "See www.x.org today."
    assert finished("Siehe www.x.org und a@b.de", "") == "www.x.org a@b.de"
    assert finished("Um 7 kommen sieben", "At 7, 7 come") == "At 7, 7 come"  # the second is a translation
    assert finished("Das kostet 4 Euro", "It costs 4 4eure") == "It costs 4 eure"  # the model stutters
    assert finished("Nimm 17 mit", "Take 17,17,1 along", "17,17,1=17") == "Take 17 along"


@pytest.mark.parametrize(
    ("source", "translation", "pairs", "expected"),
    [
        ("Klick <b>hier</b>.", "Click here.", "here=hier", "Click <b>here</b>."),
        ("<p>Ein <i>alter <b>Hund</b></i></p>", "a dog old", "old=alter dog=Hund", "<p>a <i><b>dog</b> old</i></p>"),
        ("<b>eins</b> <i>zwei</i>", "two one", "one=eins two=zwei", "<i>two</i> <b>one</b>"),
        ("Wo<br>ist <hr> es", "Where is it", "Where=Wo is=ist it=es", "Where<br>is <hr> it"),
        ("Lies <b></b> das", "Read it", "Read=Lies it=das", "Read <b></b> it"),
        ("Lies <b>das</b>", "Read", "Read=Lies", "Read<b></b>"),
        ('Eine <a n="x>y">Rose</a>', "A rose", "rose=Rose", 'A <a n="x>y">rose</a>'),
        ("a <b>b</b> c <b>d</b>", "d b", "b=b d=d", "<b>d</b> <b>b</b>"),
        ("Seite&nbsp;5 ist", "page 5 is", "page=Seite 5=5 is=ist", "page&nbsp;5 is"),
        ("a &nbsp; b", "x y", "x=a y=b", "x &nbsp; y"),
        ("un<b>glaub</b>lich alt", "very old", "very=unglaublich old=alt", "<b>very</b> old"),
        ("<li>eins</li><li>zwei</li>", "one two", "one=eins two=zwei", "<li>one</li><li>two</li>"),
        ("<p> eins <b> zwei </b> </p>", "one two", "one=eins two=zwei", "<p> one <b> two </b> </p>"),
        ("eins<br>zwei drei", "three. one", "three=drei one=eins", "three. one<br>"),
        ("Klick<b> hier</b>", "Click here", "Click=Klick here=hier", "Click<b> here</b>"),
        ("Klick <b>hier </b>an", "Click here on", "Click=Klick here=hier on=an", "Click <b>here </b>on"),
        ("<p>eins<br></p>zwei", "one two", "one=eins two=zwei", "<p>one<br></p>two"),
        ("a <br> b", "x", "x=a", "x <br>"),
        ("a <b>b c</b>", "y o z z", "y=b o=a z=c", "y o <b>z z</b>"),
        ("eins<br>zwei<i></i> drei", "one two", "one=eins two=drei", "one<br><i></i>two"),
        ("<b>a c</b> <br> d", "x, y z", "x=a y=c ,=d z=d", "<b>x, y</b> <br> z"),
        ("Der Ufer&shy;weg", "The path", "The=Der path=Uferweg", "The path&shy;"),
        ("Ich &hearts; dich", "I'm yours", "I=Ich m=dich yours=dich", "I'm &hearts; yours"),
        ("Ich<br>dich", "I'm yours", "I=Ich '=Ich m=dich yours=dich", "I'm<br>yours"),
        ("am 7. &copy; Mai", "on 7th May", "on=am 7=7 th=Mai May=Mai", "on 7th &copy; May"),
        ("z. &copy; B.", "e.g. so", "e=z g=B", "e.g. &copy; so"),
        ("Sie <b>ist &hearts; da</b>", "She's-in well", "She=Sie s=ist in=da well=da", "She'<b>s-in &hearts; well</b>"),
        ("<b>Ich</b> bin", "I'm", "I=Ich m=bin", "<b>I</b>'m"),
        ("eins&nbsp;zwei", "一'二", "一=eins '=eins 二=zwei", "一'&nbsp;二"),
    ],
)  # fmt: skip
def test_tags_go_where_their_words_went(source, translation, pairs, expected):
    assert finished(source, translation, pairs) == expected


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("M&uuml;ll &amp; &quot;Rad&quot; '", 'Müll & "bike" <', "M&uuml;ll &amp; &quot;bike&quot; <"),
        ("x &#38; y &amp; www.x.org/?a&amp;b", "x & X", "x &#38; www.x.org/?a&amp;b"),
        ("Siehe www.x.org um 17:30 und a@b.de", "byX Xs on byZs QZ", "by www.x.org  on by 17:30 a@b.de"),
        ("{n} um 12", "Xs at12 and X", "{n} at12 and "),
        ("Lies {n}", "Xray X-ray", "Xray X-ray"),
        ("Lies Xs {n}", "Xs byX", "Xs by {n}"),
    ],
)
def test_characters_become_entities_and_joined_marks_words(source, translation, expected):
    assert mark(source, ALL, placeholders=False).finished(translation) == expected


@pytest.mark.parametrize("placeholders", [False, True])
def test_no_span_of_a_sentence_is_lost_doubled_or_left_as_a_mark(placeholders):
    """500 sentences of every kind of span, and a model that loses, repeats, moves and joins their marks."""
    for seed in range(500):
        draw, joined = random.Random(seed), seed % 4 == 0  # some without a blank between their words
        source = sentence(draw).replace(" ", "" if joined else " ")
        marked = mark(source, KINDS, placeholders)
        if marked is None or not marked.text:
            continue
        translation = "stone " + hostile(draw, [*filter(None, marked.marks)])
        translation = translation.replace(" ", "" if joined else " ")
        numbers = [draw.randrange(-1, len(units(marked.text))) for _ in units(translation)]
        result = marked.finished(translation, numbers)
        told = (source, translation, result)
        assert well_formed(re.sub("</?li>|<hr/>|<wbr>", "", result)), told
        if joined:
            spans = collections.Counter(edit.text for edit in marked.edits)
            assert all(result.count(span) >= spans[span] for span in spans), told
            tags = [sorted(re.findall("</?[a-z]+>", text)) for text in (source, result)]
            assert tags[0] == tags[1], told
            continue
        before, after = (collections.Counter(SPANS.findall(text)) for text in (source, result))
        copies = {mark for mark in marked.marks if mark.isdigit()}  # a number may stand twice
        assert {*before} == {*after}, told
        assert all(after[span] == before[span] or span in copies for span in before), told
        others = SPANS.sub("_", result)
        assert not re.search(rf"[{MARKS[0]}-{MARKS[-1]}]|\b(by)?[XZQYVWKJ]s?\b", others), told
        for span in VOID:
            if re.search(rf"\w {re.escape(span)} \w", source) and source.count(span) == 1:
                assert re.search(rf"(^|[ >;]){re.escape(span)}([ <&]|$)", result), told


def steps(function, *args):
    """The number of lines of marks, places and spans that run; checks of annotations do not count."""
    files = {sys.modules[each.__module__].__file__ for each in (mark, Placing, edited)}
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename in files else None  # others cost no time

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "text",
    [
        lambda n: "<b>" * n + "Wo ist der Bahnhof?" + "</b>" * n,
        lambda n: "<b>eins " * n + "</b>" * n,
        lambda n: "<b>" * n + "eins " + "</i>" * n,
        lambda n: "<b>eins</i> " * n,
        lambda n: "a<b>a</b>" * n,
        lambda n: "eins<br>" * n,
        lambda n: "eins " + "<br>" * n,
        lambda n: "eins " + "<br> " * n,
        lambda n: "eins 1234 {n} M&uuml;ll&nbsp;" * n,
        lambda n: "eins " + "{n}" * n,
        lambda n: "eins " + "Tom" * n,
        lambda n: "eins www.x.org/{n}&amp; " * n,
        lambda n: "eins &hearts; " * n,
    ],
)
def test_work_grows_no_faster_than_the_text(text):
    def finish(n):
        marked = mark(text(n), (*ALL, "Tom"), placeholders=False)
        source = len(units(marked.text))
        for translation in ("one X , " * n, ". " * n, "a'" * n):
            own = units(translation)
            marked.finished(translation, [t % source for t in range(len(own))])
            marked.finished(translation, [source // 2] * len(own))
        marked.faults("byZ " * n)

    finish(1)  # compiles patterns
    few, many = steps(finish, 40), steps(finish, 80)
    assert many <= 2.3 * few


def test_work_is_bounded_for_many_tags_in_a_word_of_many_translations():
    def finish(n):
        marked = mark("a<b>a</b>" * n, ["tags"], placeholders=False)
        marked.finished("x " * 4 * n, [0, -1] * 2 * n)

    finish(1)
    assert steps(finish, 160) <= 2.3 * steps(finish, 80)


def test_deep_elements_enclose_what_they_enclosed():
    deep = 20_000
    source = "<b>" * deep + "Wo ist der Bahnhof?" + "</b>" * deep
    assert finished(source, "Where?", "Where=Wo ?=?") == "<b>" * deep + "Where" + "</b>" * deep + "?"
    source = "".join(f"<t{k}>a{k} <hr>" for k in range(50)) + "".join(f"</t{k}>" for k in reversed(range(50)))
    result = mark(source, ["tags"], placeholders=False).finished("x " * 50, [*range(50)][::-1])
    assert well_formed(result) and result.count("<t") == result.count("</t") == result.count("<hr>") == 50


def test_a_word_goes_neither_into_a_span_nor_into_another_word():
    place = Placing("a b c", "x www.x.org y", [0, 1, 1, 1, 1, 1, 2], taken=[Edit(2, 11, "")])
    assert edited("x www.x.org y", [place.word(Edit(2, 3, "B"))]) == "x www.x.org B y"
    both = Placing("a b", "x y", [0, 0])
    assert edited("x y", [both.word(Edit(0, 1, "A")), both.word(Edit(2, 3, "B"))]) == "A B"
    short = Placing("a b c", "x'y z", [0, 0, 2, 2])
    assert edited("x'y z", [short.word(Edit(2, 3, "B"))]) == "x'y B z"
    last = Placing("a b", "x.", [0, 0])
    assert edited("x.", [last.word(Edit(2, 3, "B"))]) == "x B."
