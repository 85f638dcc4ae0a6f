"""Reads parallel text with markup: TMX, and the test sets of WMT as SGM and, since 2021, as XML.

lxml reads the XML; it expands no entities and fetches nothing. Entities are characters by their names in HTML, or short
text that the file declares; a file with others is refused.
"""

from __future__ import annotations

import html
import html.entities
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.text.languages import closest, primary
from padir.text.lines import Metered, Reader, readable

Pairs = Iterator[tuple[str, str]]
Segments = dict[tuple[str, str], str]  # texts by document and number

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_SAFE: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False}
_UTF_16 = re.compile(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*encoding\s*=\s*.utf-?16", re.IGNORECASE)
_INLINE = ("seg", "hi", "sub")  # elements of TMX with text; what other elements hold are codes
_LARGEST_SGM = 1 << 26  # maximum bytes of an SGM file, which is read as a whole
_LONGEST_ENTITY = 64  # maximum number of characters of an entity that a file declares
# Patterns of SGM; they never match in two ways, so that no text takes long.
_TAG = re.compile(r"<(srcset|refset|tstset|doc|/?seg)\b([^>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"(?<![\w:])([\w:]++)\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]++))")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[\da-f]{1,6}|\w{1,31});", re.IGNORECASE)
_ONCE = "give a file with one translation of each segment"


def unwrapped(text: str) -> str:
    """A sentence with a space for each line break in it, and without blanks at its ends.

    >>> unwrapped(" Guten\\r\\n  Morgen! ")
    'Guten Morgen!'
    """
    parts = (part.strip(" \t") for part in text.replace("\r", "\n").split("\n"))
    return " ".join(filter(None, parts))


def tmx(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of translation units; a unit without one of the two languages has an empty side."""
    found: set[str] = set()
    pairs = 0
    with file:
        for unit, entities in _elements(file, path, "tu"):
            texts: dict[str, str] = {}
            for variant in unit.iterfind("{*}tuv"):
                segment = variant.find("{*}seg")
                code = variant.get(_LANGUAGE) or variant.get("lang") or ""
                text = "" if segment is None else _text(segment, entities, path, _INLINE)
                texts.setdefault(code, unwrapped(text))
            found.update(texts)
            codes = list(texts)
            places = (closest(codes, language) for language in languages)
            source, target = (texts[codes[place[0]]] if place else "" for place in places)
            if source or target:
                pairs += bool(source and target)
                yield source, target
    if not pairs:
        got = ", ".join(sorted(found)) or "nothing"
        remedy = "check the languages"
        raise PadirError(f"{path} has no pair in {languages[0]} and {languages[1]}, but {got}", remedy=remedy)


def _elements(file: Reader, path: Path, name: str) -> Iterator[tuple[Any, dict[str, str | None]]]:
    """Yields the elements of a name one by one, with the texts of all entities, by their names and semicolons."""
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # a binary module

    meter = Metered(file, f"{path}, <{name}>")
    entities: dict[str, str | None] = {}
    with readable(str(path), "XML"):
        try:
            for _, element in etree.iterparse(meter, tag=f"{{*}}{name}", encoding=_encoding(file), **_SAFE):
                entities = entities or html.entities.html5 | _declared(element.getroottree().docinfo.internalDTD)
                yield element, entities
                meter.begin()
                element.clear()
                for parent in element.iterancestors():
                    del parent[:-1]
        except etree.XMLSyntaxError as error:  # its own message lacks what came before
            raise ValueError(*(f"{entry.message}, line {entry.line}" for entry in error.error_log[-1:])) from None


def _declared(dtd: Any) -> dict[str, str | None]:
    """The entities that a file declares; None for those that hold markup, other entities, files or long text."""
    return {} if dtd is None else {f"{entity.name};": _plain(entity.content) for entity in dtd.iterentities()}


def _plain(text: str | None) -> str | None:
    return text if text and len(text) <= _LONGEST_ENTITY and not re.search("[&<]", text) else None


def _encoding(file: Reader) -> str | None:
    """The encoding of XML whose declaration is wrong: readers refuse UTF-16, so the text was converted to UTF-8."""
    return "utf-8" if _UTF_16.match(file.peek()) else None


def _text(segment: Any, entities: dict[str, str | None], path: Path, inline: Sequence[str] = ()) -> str:
    """The text of a segment and of the elements inside it, if `inline` is empty or names them."""
    parts = [segment.text or ""]
    for child in segment:
        if name := getattr(child, "name", ""):  # an entity
            text = entities.get(f"{name};")
            if text is None:
                what = f"{path}, line {segment.sourceline}: the entity &{name}; has no plain text"
                raise PadirError(what, remedy="write its text in its place")
            parts.append(text)
        elif isinstance(child.tag, str) and (not inline or child.tag.rpartition("}")[2] in inline):
            parts.append(_text(child, entities, path, inline))
        parts.append(child.tail or "")
    return "".join(parts)


def wmt(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of WMT's XML; takes the first of several references."""
    with file:
        for document, entities in _elements(file, path, "doc"):
            where = f"{path}, document {document.get('id')!r}"
            sides: list[Segments] = []
            for tag, language in zip(("src", "ref"), languages, strict=True):
                side = document.find(tag)
                code = "" if side is None else side.get("lang", "")
                if side is None or (code and primary(code) != primary(language)):
                    got = f"one in {code}" if code else "none"
                    raise PadirError(
                        f"{where}: expected a <{tag}> in {language}, got {got}", remedy="check the languages"
                    )
                segments = [(("", s.get("id", "")), unwrapped(_text(s, entities, path))) for s in side.iter("seg")]
                sides.append(dict(segments))
                if len(sides[-1]) < len(segments):
                    raise PadirError(f"{where} has a segment of <{tag}> twice", remedy=_ONCE)
            yield from _by_key(sides[0], sides[1], where)


def sgm(files: Sequence[tuple[Path, Callable[[], Reader]]], languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of two SGM files, given as paths and functions that open them."""
    sides = [_segments(begin(), path, language) for (path, begin), language in zip(files, languages, strict=True)]
    yield from _by_key(sides[0], sides[1], " and ".join(str(path) for path, _ in files))


def _segments(file: Reader, path: Path, language: str) -> Segments:
    """The segments of an SGM file, which need not be well-formed XML: a lone & is allowed."""
    with file, readable(str(path), "SGM"):
        data = file.read(_LARGEST_SGM + 1)
        if len(data) > _LARGEST_SGM:
            what = f"{path}: more than {_LARGEST_SGM:,} bytes are too many for a test set"
            raise PadirError(what, remedy="give its sentences as plain text")
        content = data.decode("utf-8-sig")
    segments: Segments = {}
    document = ""
    number: str | None = None  # of the segment that has begun
    end = 0  # of the last tag
    for tag in _TAG.finditer(content, 0, content.rfind(">") + 1):
        attributes = {a[1].lower(): a[2] or a[3] or a[4] or "" for a in _ATTRIBUTE.finditer(tag[2])}
        kind = tag[1].lower()
        if (kind == "/seg") != (number is not None):
            raise PadirError(f"{path}: <{kind}> after segment {number or 'none'}", remedy="close each <seg> by </seg>")
        if number is not None:
            if (document, number) in segments:
                raise PadirError(f"{path} has segment {number} of document {document} twice", remedy=_ONCE)
            text = content[end : tag.start()]
            segments[document, number] = unwrapped(_ENTITY.sub(lambda it: html.unescape(it[0]) or it[0], text))
            number = None
        elif kind == "seg":
            number = attributes.get("id", "")
        elif kind == "doc":
            document = attributes.get("docid", "")
        else:
            code = attributes.get("srclang" if kind == "srcset" else "trglang", "any").lower()
            if code != "any" and primary(code) != primary(language):
                raise PadirError(f"{path} is in {code}", remedy=f"give a file in {language}, and the source first")
        end = tag.end()
    if number is not None:
        raise PadirError(f"{path} ends inside segment {number}", remedy="fetch it again")
    return segments


def _by_key(sources: Segments, targets: Segments, where: str) -> Pairs:
    if sources.keys() != targets.keys():
        differ = ", ".join(" ".join(key).strip() for key in sorted(sources.keys() ^ targets.keys())[:3])
        what = f"{where}: {len(sources)} source and {len(targets)} target segments do not match ({differ})"
        raise PadirError(what, remedy="give both sides of one test set")
    for key, text in sources.items():
        yield text, targets[key]
