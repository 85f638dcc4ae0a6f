"""Tells what kind a text is by its first block and its name: one sentence a line, columns, JSON lines, SGM or XML."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

from padir.errors import PadirError
from padir.text.lines import readable

_NEARLY_ALL = 0.9  # share of lines with a tab from which a text has two columns
_ROOTS = {"srcset": "sgm", "refset": "sgm", "tstset": "sgm", "mteval": "sgm", "tmx": "tmx"}
_ROOTS |= {"dataset": "wmt", "collection": "wmt"}
# The part before the root never matches in two ways, so that no text takes long.
_ROOT = re.compile(r"(?>\s|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*+(?:\[.*?\]\s*)?>)*+<([A-Za-z][\w:.-]*)", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"]|"")*+"(?:\t"(?:[^"]|"")*+")+\r?')  # columns in quotes, separated by tabs
_SUFFIXES = {".sgm": "sgm", ".sgml": "sgm", ".xml": "wmt", ".tmx": "tmx", ".csv": "csv", ".tsv": "tsv"}
_SUFFIXES |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
_TITLES = {"tsv": "text in columns", "csv": "CSV", "json": "JSON", "tmx": "TMX", "wmt": "XML of WMT", "sgm": "SGM"}
# Formats that are not read: roots of XML, and what text begins with.
_OTHER_ROOTS = ("html", "xliff", "doc", "tei", "ts", "resources")
_OTHER = {
    "a gettext catalogue": re.compile(r'(?:#[^\n]*\n|\s)*msg(?:id|ctxt) "'),
    "a file of subtitles": re.compile(r"WEBVTT|\d+\s*\n\d+:\d\d:\d\d[,.]\d+ -->"),
}

_log = logging.getLogger("padir")


def kind_of(head: bytes, path: Path) -> str:
    """The kind of a text: tsv, csv, json, tmx, wmt, sgm or lines.

    Args:
      head: the first block of the text, which is UTF-8.
      path: its name; the suffix counts, too.

    Raises:
      PadirError: the text has a format that padir does not read.
    """
    named = _SUFFIXES.get(suffix(path), "")
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip()
    root = _ROOT.match(text)
    kind = root[1].lower() if root else ""
    if kind in _ROOTS:
        return _ROOTS[kind]
    marked = named in ("sgm", "wmt", "tmx") or text.startswith(("<?xml", "<!DOCTYPE")) or kind in _OTHER_ROOTS
    if text and marked:
        what = f"XML of the kind <{root[1]}>" if root else "not SGM or XML, despite its name"
        raise PadirError(f"{path} is {what}", remedy="give plain text, SGM or XML of WMT, or TMX")
    for what, begin in _OTHER.items():
        if begin.match(text):
            raise PadirError(f"{path} is {what}", remedy="give its sentences as plain text")
    if named == "json" or (not named and text.startswith(("{", "[")) and _is_json(text.partition("\n")[0])):
        return "json"
    lines = [line for line in text.split("\n")[: -1 if "\n" in text else None] if line.strip()]
    if named in ("", "tsv") and lines and all(map(_QUOTED.fullmatch, lines[1:] or lines)):  # the first may be a header
        _log.warning("%s: all fields of its first %d lines stand in double quotes: read as CSV", path, len(lines))
        return "csv"
    if named:
        return named
    tabs = sum("\t" in line for line in lines)
    return "tsv" if lines and tabs >= _NEARLY_ALL * len(lines) else "lines"


def check_lines(file: io.BufferedReader, path: Path, name: str) -> None:
    """Refuses an open file in another format than one sentence a line.

    Args:
      path: as in `kind_of`.
      name: the file's name in messages.

    Raises:
      PadirError: the file has another format, which the message names.
    """
    with readable(name, getattr(file, "kind", "")):
        head = file.peek()
    kind = kind_of(head, path)
    if kind != "lines":
        remedy = "write the sentences of one language to a file of their own"
        raise PadirError(f"{name} is {_TITLES[kind]}, and not one sentence a line", remedy=remedy)


def suffix(path: Path) -> str:
    """The last suffix of a file's name in lower case, without the suffix of its compression.

    >>> suffix(Path("a.EN.gz")), suffix(Path("a"))
    ('.en', '')
    """
    found = [each.lower() for each in path.suffixes if each.lower() not in (".gz", ".bz2", ".xz", ".zst")]
    return found[-1] if found else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
