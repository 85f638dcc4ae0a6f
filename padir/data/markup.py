"""Reads parallel text with markup: TMX, and the test sets of WMT as SGM and, since 2021, as XML.

lxml reads the XML; it expands no entities of a file and fetches nothing.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError, first_line
from padir.text.languages import primary, same
from padir.text.lines import Reader

Pairs = Iterator[tuple[str, str]]
Segments = dict[tuple[str, str], str]  # texts by document and number

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_SAFE: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False}
_UTF_16 = re.compile(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*encoding\s*=\s*.utf-?16", re.IGNORECASE)
_TAG = re.compile(r"<(srcset|refset|tstset|doc|seg)\b([^>]*)>", re.IGNORECASE)
_END = re.compile("</seg>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"([\w:]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")
_ONCE = "give a file with one translation of each segment"
_ENTITY = re.compile(r"&(?:#\d+|#x[\da-f]+|\w+);", re.IGNORECASE)


def one_line(text: str) -> str:
    """A sentence with a space for each line break in it, and without blanks at its ends.

    >>> one_line(" Guten\\r\\n  Morgen! ")
    'Guten Morgen!'
    """
    return re.sub(r"[ \t]*[\r\n][ \t\r\n]*", " ", text.strip(" \t\r\n"))


def tmx(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of translation units; a unit without one of the two languages has an empty side."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # a binary module

    found: set[str] = set()
    pairs = 0
    with file, _whole(path):
        for _, unit in etree.iterparse(file, tag="{*}tu", encoding=_encoding(file), **_SAFE):
            texts: dict[str, str] = {}
            for variant in unit.iterfind("{*}tuv"):
                segment = variant.find("{*}seg")
                code = variant.get(_LANGUAGE) or variant.get("lang") or ""
                texts.setdefault(code, "" if segment is None else one_line(_text(segment)))
            found.update(texts)
            source, target = (_of_language(texts, language) for language in languages)
            if source or target:
                pairs += bool(source and target)
                yield source, target
            unit.clear()
            while unit.getprevious() is not None:
                del unit.getparent()[0]
    if not pairs:
        got = ", ".join(sorted(found)) or "nothing"
        remedy = "check the languages"
        raise PadirError(f"{path} has no pair in {languages[0]} and {languages[1]}, but {got}", remedy=remedy)


def _encoding(file: Reader) -> str | None:
    """The encoding of XML whose declaration is wrong: readers refuse UTF-16, so the text was converted to UTF-8."""
    return "utf-8" if _UTF_16.match(file.peek()) else None


def _of_language(texts: dict[str, str], language: str) -> str:
    """The text under the code itself, else under another code or another region of its language, else ""."""
    ways = (
        lambda code: code.lower() == language.lower(),
        lambda code: same(code, language),
        lambda code: primary(code) == primary(language),
    )
    return next((texts[code] for way in ways for code in texts if way(code)), "")


def _text(segment: Any) -> str:
    """The text of a TMX segment, without formatting codes."""
    parts = [segment.text or ""]
    for child in segment:
        if isinstance(child.tag, str) and child.tag.rpartition("}")[2] in ("hi", "sub"):
            parts.append(_text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def wmt(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of WMT's XML; takes the first of several references."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # a binary module

    with file, _whole(path):
        documents = list(etree.parse(file, etree.XMLParser(encoding=_encoding(file), **_SAFE)).iter("doc"))
    for document in documents:
        where = f"{path}, document {document.get('id')!r}"
        sides: list[Segments] = []
        for tag, language in zip(("src", "ref"), languages, strict=True):
            side = document.find(tag)
            code = "" if side is None else side.get("lang", "")
            if side is None or (code and primary(code) != primary(language)):
                got = f"one in {code}" if code else "none"
                raise PadirError(f"{where}: expected a <{tag}> in {language}, got {got}", remedy="check the languages")
            segments = [(("", s.get("id", "")), one_line("".join(s.itertext()))) for s in side.iter("seg")]
            sides.append(dict(segments))
            if len(sides[-1]) < len(segments):
                raise PadirError(f"{where} has a segment of <{tag}> twice", remedy=_ONCE)
        yield from _by_key(sides[0], sides[1], where)


def sgm(files: Sequence[tuple[Path, Iterable[str]]], languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of two SGM files, given as paths and lines."""
    sides = [_segments(path, lines, language) for (path, lines), language in zip(files, languages, strict=True)]
    yield from _by_key(sides[0], sides[1], " and ".join(str(path) for path, _ in files))


def _segments(path: Path, lines: Iterable[str], language: str) -> Segments:
    """The segments of an SGM file, which need not be well-formed XML: a lone & is allowed."""
    content = "\n".join(lines)
    segments: Segments = {}
    document = ""
    for tag in _TAG.finditer(content):
        attributes = {a[1].lower(): a[2] or a[3] or a[4] or "" for a in _ATTRIBUTE.finditer(tag[2])}
        kind = tag[1].lower()
        if kind == "doc":
            document = attributes.get("docid", "")
        elif kind != "seg":
            code = attributes.get("srclang" if kind == "srcset" else "trglang", "any").lower()
            if code != "any" and primary(code) != primary(language):
                raise PadirError(f"{path} is in {code}", remedy=f"give a file in {language}, and the source first")
        else:
            key = document, attributes.get("id", "")
            if key in segments:
                what = f"{path} has segment {key[1]} of document {key[0]} twice"
                raise PadirError(what, remedy=_ONCE)
            end = _END.search(content, tag.end())
            if end is None:
                raise PadirError(f"{path} ends inside segment {key[1]}", remedy="fetch it again")
            text = content[tag.end() : end.start()]
            segments[key] = one_line(_ENTITY.sub(lambda entity: html.unescape(entity[0]), text))
    return segments


def _by_key(sources: Segments, targets: Segments, where: str) -> Pairs:
    if sources.keys() != targets.keys():
        differ = ", ".join(" ".join(key).strip() for key in sorted(sources.keys() ^ targets.keys())[:3])
        what = f"{where}: {len(sources)} source and {len(targets)} target segments do not match ({differ})"
        raise PadirError(what, remedy="give both sides of one test set")
    for key, text in sources.items():
        yield text, targets[key]


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turns lxml's errors about damaged files into a `PadirError`."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # a binary module

    try:
        yield
    except (etree.LxmlError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # an error of the file system, which lxml passes on
            raise
        raise PadirError(f"{path} is damaged XML ({first_line(error)})", remedy="fetch it again") from None
