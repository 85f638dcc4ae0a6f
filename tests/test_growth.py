"""Text, spans, terms, templates, JSON and gin that somebody made to take long: work grows no faster than their size.

Files of other formats and archives: tests/data/test_hostile.py. The lines of placing spans: tests/text/test_marks.py.
"""

import contextlib
import functools
import time

import pytest
from support.small_corpus import small_tokenizer

from padir import config
from padir.constrained.terms import missing, terms_of
from padir.decoding.templates import Template
from padir.errors import PadirError
from padir.storage.files import parsed_json
from padir.text.marks import mark
from padir.text.normalise import normalised
from padir.text.sentences import Paragraph
from padir.text.spans import KINDS, find, with_marks

TEXTS = {
    "spaces": lambda n: " " * n + "a" + " " * n,
    "tabs": lambda n: "a\t" * n,
    "zero width": lambda n: "\u200b" * n + "a",
    "marks of one letter": lambda n: "a" + "\u0301\u0316" * n,
    "letters with marks": lambda n: "o\u0308" * n,
    "stars": lambda n: "*" * n + "a" + "*" * n,
    "opened": lambda n: "**a" * n,
    "never opened": lambda n: "** " * n + "a",
    "backticks": lambda n: "`" * n + "a",
    "marks of one end": lambda n: "**_`" + "a " * n,
    "marks of another end": lambda n: "a*b " * n + "~~_",
    "closing hashes": lambda n: "a" + " #" * n,
    "odd blanks": lambda n: "a" + " " * n + "b" + " \t" * n + "c",
    "wide letters": lambda n: "\uff21\u0301" * n,
    "ligatures": lambda n: "\ufb03" * n,
    "fractions": lambda n: "½" * n + " 1" + "½/" * n,
    "code": lambda n: "`a " * n,
    "emphasis": lambda n: " _a_" * n,
    "crossed": lambda n: "*" + "`*" * n + "a",
    "bullets": lambda n: "- " * n + "a",
    "quotes": lambda n: ">" * n + "a",
    "boxes": lambda n: "[ ] " * n + "a",
    "numbers": lambda n: "1) " * n + "a",
    "emoji": lambda n: "\U0001f600" * n + "a",
    "capitals": lambda n: "ABC " * n,
    "a word in capitals": lambda n: "A" * n,
    "nested tags": lambda n: "<b>" * n + "a" + "</b>" * n,
    "open tags": lambda n: "<" * n,
    "attributes": lambda n: "<a " + "b=" * n,
    "comments": lambda n: "<!--" * n,
    "entities": lambda n: "&" * n + "&a" * n + "&amp;" * n,
    "variables": lambda n: "{" * n + "${a" * n + "%(" * n + "{{ a" * n + "{%" + "%" * n + "{{a}}" * n,
    "addresses": lambda n: "a@" * n + "www." * n + "http://" * n,
    "dots of addresses": lambda n: "a@b" + ".b" * n + " www." + "a.,;" * n,
    "digits": lambda n: "1" * n + " " + "1.," * n + " " + "+1-" * n,
    "names": lambda n: "a " + "Ab-" * n + " " + "Ab " * n,
}


def seconds(work):
    """Processor time of a call."""
    began = time.process_time()
    with contextlib.suppress(PadirError):
        work()
    return time.process_time() - began


def grows(make, n):
    """Refuses work that takes more than 24 times as long for 8 times the size; the square would take 64 times.

    Each is measured up to three times, because the machine may be busy.
    """
    few, many = make(n), make(8 * n)
    most = 24 * max(min(seconds(few) for _ in range(3)), 1e-4)
    assert any(seconds(many) < most for _ in range(3))


@pytest.mark.parametrize("kind", TEXTS)
def test_text(kind):
    def work(n):
        text = TEXTS[kind](n)

        def read():
            normalised(text).restored(text)
            find(text, [*KINDS, "Ab"])
            mark(text, ["tags"], placeholders=False)
            with_marks(text, text)

        return read

    grows(work, 1_500)


@pytest.mark.parametrize(
    "text", ["a. " * 3_000, ". " * 3_000, '!"' * 3_000, "a\n" * 3_000, "z.B. " * 3_000, "\u3002" * 3_000]
)
def test_paragraphs(text):
    grows(lambda n: functools.partial(Paragraph.split, text[: len(text) * n // 8], "de", ["tags"]), 1)


@pytest.mark.parametrize(
    ("terms", "source"),
    [
        (lambda n: {"a": "b"}, lambda n: "a " * n),
        (lambda n: {f"a{i}": f"b{i}" for i in range(n // 8)}, lambda n: "a1 a2 a3"),  # a user's own list
        (lambda n: {"a1": "b", "a2": "c"}, lambda n: " ".join(f"a{i}" for i in range(n))),
        (lambda n: {"a " * n: "b"}, lambda n: "a " * n),
        (lambda n: {"a": "b " * n}, lambda n: "a"),
    ],
)
def test_terms(terms, source):
    def work(n):
        (mapping,) = terms_of([terms(n)], 1, 0)
        return functools.partial(missing, mapping, source(n), source(n))

    grows(work, 400)


@pytest.mark.parametrize("part", ["a", "___", "___ ", "__3__ a ", "__" + "9" * 50 + "__", "_"])
def test_templates(tmp_path, part):
    tokenizer = small_tokenizer(tmp_path / "vocab.model")
    grows(lambda n: functools.partial(Template.parse, part * n, tokenizer), 500)


@pytest.mark.parametrize(
    "begin, part", [("", "["), ("", '{"a":'), ("[1", ",1"), ("", "1"), ('"', "\\u0041"), ("", " ")]
)
def test_json(begin, part):
    def read(text):
        with contextlib.suppress(ValueError):
            parsed_json(text)

    grows(lambda n: functools.partial(read, begin + part * n), 10_000)


@pytest.mark.parametrize(
    "binding",
    [
        lambda n: "\n".join(f"A{i} = %A{i + 1}" for i in range(n)) + f"\nA{n} = 1",
        lambda n: "\n".join(f"A{i + 1} = %A{i}" for i in range(n)) + "\nA0 = 1",
        lambda n: "A = " + "[" * n,
        lambda n: "A = [" + "1, " * n,
        lambda n: "/".join(["s"] * n) + "/Padir.remask = 1",
        lambda n: "A" * n + " = 1",
    ],
)
def test_gin(tmp_path, binding):
    def read(n):
        path = tmp_path / f"{n}.gin"
        path.write_text(binding(n))

        def parse():
            config.clear()
            config.parse([str(path)])

        return parse

    try:
        grows(read, 100)
    finally:
        config.clear()
