"""Traces as text and as a page."""

import html.parser
import math

import pytest

from padir.reporting.trace import Step, Trace, render_html, render_text


def step(*pieces: str, probability: float = 1.0) -> Step:
    return Step(pieces, (math.log(probability),) * len(pieces))


FOOTBALL = Trace(
    source="Im Fußball geht alles sehr schnell.",
    steps=(
        step("ing", "▁cup", "ing", "▁often", "."),
        step("▁Every", "thing", "▁football", "▁fast", "."),
        step("▁Every", "thing", "▁moves", "▁fast", "."),
        step("▁Every", "thing", "▁moves", "▁fast", "."),
    ),
    output="Everything moves fast.",
)


class Page(html.parser.HTMLParser):
    """What a browser would see of a page: its tags, and the text of each row by its label."""

    VOID = {"meta", "br", "wbr"}

    def __init__(self, page: str):
        super().__init__()
        self.open, self.tags, self.marked, self.titles, self.styles = [], [], [], [], []
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()
        assert self.open == [], "unclosed tags"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in self.VOID:
            self.open.append((tag, attributes))
        if tag == "dt":
            self.rows.append(["", "", ""])
        if tag == "span" and "dl" in [name for name, _ in self.open]:
            self.titles.append(attributes.get("title"))
            self.styles.append(attributes.get("style"))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop()[0] == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        inner = [tag for tag, _ in self.open]
        if "dt" in inner or "dd" in inner:
            note = any(attributes.get("class") == "note" for _, attributes in self.open)
            self.rows[-1][0 if "dt" in inner else 2 if note else 1] += data
        if inner and "dl" in inner and "changed" in self.open[-1][1].get("class", ""):
            self.marked.append(data)


def test_text_brackets_what_changed():
    assert render_text(FOOTBALL).split("\n") == [
        "source  Im Fußball geht alles sehr schnell.",
        "step 0  ing cuping often.",
        "step 1  [Everything football fast].",
        "step 2  Everything [moves] fast.",
        "step 3  Everything moves fast.",
        "output  Everything moves fast.",
    ]


def test_text_shows_a_changed_space_and_the_middle_of_a_word():
    trace = Trace("x", (step("▁a", "b", "c", "d"), step("▁a", "e", "c", "▁")), "aec")
    assert render_text(trace).split("\n")[2] == "step 1  a[e]c [▁]"


def test_text_of_an_empty_sentence():
    assert render_text(Trace("", (Step((), ()),), "")) == "source\nstep 0\noutput"


def test_changed():
    assert FOOTBALL.changed(0) == (False,) * 5
    assert FOOTBALL.changed(1) == (True, True, True, True, False)
    assert FOOTBALL.changed(2) == (False, False, True, False, False)


def test_page_shows_the_same_lines_and_marks_what_changed():
    page = Page(render_html([FOOTBALL]))
    assert page.rows == [
        ["source", "Im Fußball geht alles sehr schnell.", ""],
        ["step 0", "ing cuping often.", "start"],
        ["step 1", "Everything football fast.", "4 of 5 changed"],
        ["step 2", "Everything moves fast.", "1 of 5 changed"],
        ["step 3", "Everything moves fast.", "no change"],
        ["output", "Everything moves fast.", ""],
    ]
    assert page.marked == ["Every", "thing", "football", "fast", "moves"]


def test_page_tells_probabilities_and_underlines_doubt():
    """0.45 is halfway from 0.9, where the underline begins, to 0; the canvas has no probabilities to show."""
    page = Page(
        render_html([Trace("x", (step("▁a"), step("▁b", probability=0.45), step("▁b", probability=0.95)), "b")])
    )
    assert page.titles == [None, "probability 0.45, was “a”", "probability 0.95"]
    assert page.styles == [None, "--doubt:50%", None]
    impossible = Trace("x", (step("a"), Step(("a",), (-math.inf,)), Step(("a",), (1e-2,))), "a")
    assert Page(render_html([impossible])).titles == [None, "probability 0.00", "probability 1.00"]


def test_page_tells_no_probability_where_nothing_was_written():
    steps = (step("▁a", "b"), Step(("▁c", "b"), (math.log(0.45), None)), Step(("▁c", "d"), (None, -0.1)))
    page = Page(render_html([Trace("x", steps, "cd")]))
    assert page.titles == [None, None, "probability 0.45, was “a”", None, None, "probability 0.90, was “b”"]
    assert page.styles == [None, None, "--doubt:50%", None, None, None]


@pytest.mark.parametrize(
    "evil", ["<script>alert(1)</script>", '" onmouseover="alert(1)', "&lt;b&gt;", "</dd></style><b>"]
)
def test_page_shows_markup_as_text(evil):
    trace = Trace(evil, (step("▁a", evil), step(evil, "▁b")), evil)
    page = Page(render_html([trace]))
    harmless = Page(render_html([Trace("x", (step("▁a", "x"), step("x", "▁b")), "x")]))
    assert [(tag, sorted(attributes)) for tag, attributes in page.tags] == [
        (tag, sorted(attributes)) for tag, attributes in harmless.tags
    ]
    assert [row[1] for row in page.rows] == [evil, "a" + evil, evil + " b", evil]


def test_control_characters_reach_neither_terminal_nor_page():
    evil = "a\x1b[2Jb\nc\u2028d\ud800\x85\te\u200df"
    trace = Trace(evil, (step("\x1b]0;title\x07"),), evil)
    shown = "a\ufffd[2Jb\ufffdc\ufffdd\ufffd\ufffd e\u200df"
    assert render_text(trace) == f"source  {shown}\nstep 0  \ufffd]0;title\ufffd\noutput  {shown}"
    page = render_html([trace])
    assert page.encode() and Page(page).rows[0][1] == shown


def test_page_needs_no_script_and_no_network():
    page = render_html([FOOTBALL, FOOTBALL])
    tags = Page(page).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe"}
    assert not any(key in ("src", "href") or key.startswith("on") for _, attributes in tags for key in attributes)
    assert "url(" not in page and "@import" not in page
    assert "prefers-color-scheme: dark" in page
    identifiers = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert identifiers == ["sentence-1", "sentence-2"]
    assert "<title>padir: 2 sentences, step by step</title>" in page


def test_a_notebook_shows_the_page_in_a_frame():
    ((tag, attributes),) = Page(FOOTBALL._repr_html_()).tags
    assert tag == "iframe" and attributes["srcdoc"] == render_html([FOOTBALL])


def test_a_page_without_a_source_has_no_row_for_it():
    rows = Page(render_html([Trace("", FOOTBALL.steps, FOOTBALL.output)])).rows
    assert [label for label, _, _ in rows] == ["step 0", "step 1", "step 2", "step 3", "output"]


def test_page_of_no_sentences():
    assert "0 sentences" in render_html([]) and Page(render_html([])).rows == []
