"""Reads parallel text with markup: TMX, and the test sets of WMT as SGM and, since 2021, as XML.

lxml reads the XML; it expands no entities and fetches nothing. Entities are characters by their names in HTML, or short
text that the file declares; a file with others is refused.
"""

from __future__ import annotations

import html
import html.entities
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.text.languages import primary, same
from padir.text.lines import Metered, Reader, readable

Pairs = Iterator[tuple[str, str]]
Segments = dict[tuple[str, str], str]  # texts by document and number

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_SAFE: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False}
_UTF_16 = re.compile(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*encoding\s*=\s*.utf-?16", re.IGNORECASE)
_INLINE = ("seg", "hi", "sub")  # elements of TMX with text; what other elements hold are codes
_LONGEST_ENTITY = 64  # maximum number of characters of an entity that a file declares
# Patterns of SGM; they never match in two ways, so that no text takes long.
_TAG = re.compile(r"<(srcset|refset|tstset|doc|/?seg)\b([^>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"(?<![\w:])([\w:]++)\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]++))")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[\da-f]{1,6}|\w{1,31});", re.IGNORECASE)
_ONCE = "give a file with one translation of each segment"


def one_line(text: str) -> str:
    """A sentence with a space for each line break in it, and without blanks at its ends.

    >>> one_line(" Guten\\r\\n  Morgen! ")
    'Guten Morgen!'
    """
    return re.sub(r"[ \t]*[\r\n][ \t\r\n]*", " ", text.strip(" \t\r\n"))


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
                texts.setdefault(code, one_line(text))
            found.update(texts)
            source, target = (_of_language(texts, language) for language in languages)
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
        for _, element in etree.iterparse(meter, tag=f"{{*}}{name}", encoding=_encoding(file), **_SAFE):
            entities = entities or html.entities.html5 | _declared(element.getroottree().docinfo.internalDTD)
            yield element, entities
            meter.begin()
            element.clear()
            for parent in element.iterancestors():
                del parent[:-1]


def _declared(dtd: Any) -> dict[str, str | None]:
    """The entities that a file declares; None for those that hold markup, other entities, files or long text."""
    contents = {} if dtd is None else {entity.name: entity.content for entity in dtd.iterentities()}
    return {
        f"{name};": text if text and len(text) <= _LONGEST_ENTITY and not {*"&<"} & {*text} else None
        for name, text in contents.items()
    }


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
                segments = [(("", s.get("id", "")), one_line(_text(s, entities, path))) for s in side.iter("seg")]
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
    segments: Segments = {}
    document = ""
    number: str | None = None  # of the segment that has begun
    for tag, attributes, text in _tags(path, lines):
        values = {a[1].lower(): a[2] or a[3] or a[4] or "" for a in _ATTRIBUTE.finditer(attributes)}
        if (tag == "/seg") != (number is not None):
            raise PadirError(f"{path}: <{tag}> after segment {number or 'none'}", remedy="close each <seg> by </seg>")
        if number is not None:
            if (document, number) in segments:
                raise PadirError(f"{path} has segment {number} of document {document} twice", remedy=_ONCE)
            text = _ENTITY.sub(lambda entity: html.unescape(entity[0]) or entity[0], text)
            segments[document, number] = one_line(text)
            number = None
        elif tag == "seg":
            number = values.get("id", "")
        elif tag == "doc":
            document = values.get("docid", "")
        else:
            code = values.get("srclang" if tag == "srcset" else "trglang", "any").lower()
            if code != "any" and primary(code) != primary(language):
                raise PadirError(f"{path} is in {code}", remedy=f"give a file in {language}, and the source first")
    if number is not None:
        raise PadirError(f"{path} ends inside segment {number}", remedy="fetch it again")
    return segments


def _tags(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yields the tags of SGM with their attributes, and the text between each tag and the one before it."""
    meter = Metered(None, f"{path}, segment")
    before: list[str] = []  # text since the last tag
    held: list[str] = []  # its end, where a tag may have begun
    for line in lines:
        meter.take(len(line) + 1)
        held.append(line + "\n")
        if ">" in line:
            text = "".join(held)
            end = 0
            for tag in _TAG.finditer(text):
                yield tag[1].lower(), tag[2], "".join(before) + text[end : tag.start()]
                before.clear()
                meter.begin()
                end = tag.end()
            cut = text.rindex(">") + 1
            before.append(text[end:cut])
            held = [text[cut:]]


def _by_key(sources: Segments, targets: Segments, where: str) -> Pairs:
    if sources.keys() != targets.keys():
        differ = ", ".join(" ".join(key).strip() for key in sorted(sources.keys() ^ targets.keys())[:3])
        what = f"{where}: {len(sources)} source and {len(targets)} target segments do not match ({differ})"
        raise PadirError(what, remedy="give both sides of one test set")
    for key, text in sources.items():
        yield text, targets[key]
