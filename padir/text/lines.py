"""Reads lines of bytes from plain and compressed files and pipes, one at a time; only newlines end a line.

If the first block of a file has carriage returns and no newline, carriage returns end its lines. Every reader limits
the bytes of a line, because input without newlines is one line, and a small compressed file can hold a huge line.
Readers of other formats limit a row, a segment or an element in the same way (`Metered`).
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import re
import select
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, AnyStr, NamedTuple, Protocol, runtime_checkable

from padir.errors import PadirError, first_line

# Maximum bytes of a sentence in any format, and of a row or an element that holds sentences; lxml refuses 10 MB.
LONGEST_LINE = 1 << 23
_BLOCK = 1 << 16
_MARK = b"\xef\xbb\xbf"  # a byte order mark
# Compressed files by their first bytes and by their suffixes, and the modules that open them, the first that is there.
_COMPRESSED = (
    ("gzip", rb"\x1f\x8b", (".gz",), ("gzip",)),
    ("bzip2", rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38)", (".bz2",), ("bz2",)),
    ("xz", rb"\xfd7zXZ\0", (".xz",), ("lzma",)),
    ("zstd", rb"\x28\xb5\x2f\xfd", (".zst", ".zstd"), ("compression.zstd", "backports.zstd")),
)
# What files that are no text begin with.
_FOREIGN = {
    b"%PDF-": "a PDF file",
    b"PK\3\4": "a zip archive, as docx, xlsx and odt files are",
    b"\xd0\xcf\x11\xe0": "a file of an old office program",
    b"{\\rtf": "an RTF file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!\x1a": "a rar archive",
    b"SQLite format 3": "a SQLite database",
    b"\x93NUMPY": "a NumPy array",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\x7fELF": "a program",
    b"\xff\xfe\0\0": "UTF-32 text",
    b"\0\0\xfe\xff": "UTF-32 text",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_CONTROLS = bytes({*range(32)} - {*b"\t\n\r"})


@runtime_checkable
class ByteReader(Protocol):
    """An object with `readline`, the only method of a binary file that `byte_lines` needs."""

    def readline(self, size: int, /) -> bytes: ...


class Line(NamedTuple):
    """A line of bytes, without its line end (LF or CRLF) and byte order mark; `cut` is True if it was too long."""

    content: bytes
    cut: bool


class TimedReader:
    """Reads lines of a terminal, a pipe or a file; `ready` says whether the next line is there.

    Args:
      file: an open file with a descriptor; nothing has been read from it yet.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file  # the reference keeps the file open
        self._buffer = bytearray()
        self._ended = False

    def readline(self, size: int, /) -> bytes:
        """The next line with its newline, or `size` bytes of a longer one; b"" at the end."""
        while not self._complete(size):
            self._read()
        end = self._buffer.find(b"\n", 0, size) + 1 or min(size, len(self._buffer))
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    def ready(self, seconds: float) -> bool:
        """True if the next line, or the end, is there within a number of seconds."""
        until = time.monotonic() + seconds
        while not self._complete(_BLOCK):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                return False
            self._read()
        return True

    def _complete(self, size: int) -> bool:
        return self._ended or len(self._buffer) >= size or b"\n" in self._buffer

    def _read(self) -> None:
        block = os.read(self._file.fileno(), _BLOCK)
        self._buffer += block
        self._ended = not block


class Reader(io.BufferedReader):
    """An open file of bytes, decompressed; `kind` is its compression, such as "gzip", or "" for none."""

    def __init__(self, raw: Any, kind: str = "", below: io.BufferedReader | None = None):
        super().__init__(raw, _BLOCK)
        self.kind = kind
        self._below = below

    def close(self) -> None:
        super().close()
        if self._below is not None:
            self._below.close()


class _Returns(io.RawIOBase):
    """A file with newlines in place of carriage returns."""

    def __init__(self, file: io.BufferedReader):
        self._file = file

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: Any) -> int:
        block = self._file.read1(len(buffer))
        buffer[: len(block)] = block.replace(b"\r", b"\n")
        return len(block)


def open_bytes(path: str | os.PathLike[str], name: str = "", *, text: bool = True) -> Reader:
    """Opens a text file for reading bytes, decompressed if it is a gzip, bzip2, xz or zstd file.

    The first bytes determine the compression. For a pipe, from which nothing is read here, the suffix determines it.

    Args:
      name: the file's name in messages, for example a command-line option; "" stands for the path.
      text: False for a file that need not be text, such as a tar archive.

    Raises:
      PadirError: the file cannot be opened, is no text, or has an unsupported compression.
    """
    name = name or str(path)
    try:
        file = Reader(open(path, "rb", buffering=0))
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        head = file.peek() if regular else b""
    except OSError as error:
        raise PadirError(f"cannot read {name} ({error.strerror or error})", remedy="check the path") from None
    try:
        for kind, magic, suffixes, modules in _COMPRESSED:
            named = Path(path).suffix.lower() in suffixes
            if re.match(magic, head) or (named and not regular):
                file = _decompressed(file, kind, modules, name)
            elif named and head:
                raise PadirError(f"{name} is no {kind} file, despite its name", remedy="rename it, or fetch it again")
        if regular and text:
            with readable(name, file.kind):
                head = file.peek()
            _check_text(head, name)
            if b"\r" in head and b"\n" not in head:
                file = Reader(_Returns(file), file.kind, file)
    except BaseException:
        file.close()
        raise
    return file


def _decompressed(file: Reader, kind: str, modules: Sequence[str], name: str) -> Reader:
    """Opens the file with the module of its compression."""
    for module in modules:
        try:
            raw: Any = importlib.import_module(module).open(file, "rb")
        except ImportError:
            continue
        return Reader(raw, kind, file)
    remedy = f"pip install {modules[-1]}, or decompress the file"
    raise PadirError(f"{name} is a {kind} file, which needs the package {modules[-1]}", remedy=remedy)


def _check_text(head: bytes, name: str) -> None:
    """Refuses a file that is no text; the error names the file's format."""
    kind = next((kind for magic, kind in _FOREIGN.items() if head.startswith(magic)), "")
    nuls = head.count(0)
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if head[257:262] == b"ustar":
        kind = "a tar archive"
    elif not kind and nuls > len(head) / 10:
        kind = "UTF-16 text" if max(head[::2].count(0), head[1::2].count(0)) > 0.9 * nuls else "a binary file"
    elif not kind and controls > len(head) / 20 and not _is_utf8(head):
        kind = "a binary file"
    if kind:
        remedy = f"convert it with iconv -f {kind.split()[0]} -t UTF-8" if kind.endswith(" text") else ""
        archive = "unpack it" if "archive" in kind else "give a text file in UTF-8"
        raise PadirError(f"{name} is {kind}", remedy=remedy or archive)


def _is_utf8(head: bytes) -> bool:
    """True if the beginning of a text is UTF-8; it may end within a character."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


@contextlib.contextmanager
def readable(name: str, kind: str) -> Iterator[None]:
    """Turns errors about unreadable and damaged files into a `PadirError`.

    Libraries that decode a file raise errors of many classes if somebody changed it; all of them are its damage.

    Args:
      name: the file's name in messages.
      kind: the format that a library decodes, such as "gzip"; "" for none.
    """
    try:
        yield
    except PadirError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.errno or not kind):
            raise PadirError(f"cannot read {name} ({error.strerror or error})", remedy="check the path") from None
        if not kind:
            raise
        what = f"{name} is not a whole {kind} file ({first_line(error)})"
        raise PadirError(what, remedy="mend it, or fetch it again") from None


def too_long(where: str) -> PadirError:
    """The error for text above `LONGEST_LINE`."""
    what = f"{where}: more than {LONGEST_LINE:,} bytes are too long for a sentence"
    return PadirError(what, remedy="give one sentence a line, row or segment")


class Metered:
    """A file whose reader says where a unit begins, such as a row; units above `LONGEST_LINE` are refused.

    Args:
      name: the name of the file and of a unit in messages, such as "a.csv, row".
    """

    def __init__(self, file: Reader, name: str):
        self._file = file
        self._name = name
        self._units = 0
        self.begin()

    def begin(self, further: int = 0) -> None:
        """Begins a unit, which may have `further` bytes more than a line."""
        self._left = LONGEST_LINE + further
        self._units += 1

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes of the file, as a part of the unit."""
        return self.take(self._file.read(size))

    def take(self, part: AnyStr) -> AnyStr:
        """Returns a part of the unit, which somebody read; it counts."""
        self._left -= len(part)
        if self._left < 0:
            raise too_long(f"{self._name} {self._units:,}")
        return part


def lines_of(file: Reader, path: str | os.PathLike[str], *, verbatim: bool = False) -> Iterator[str]:
    """Yields the lines of an open UTF-8 text file, which is closed at the end; `verbatim` as in `byte_lines`."""
    with file:
        for number, (line, cut) in enumerate(byte_lines(file, str(path), LONGEST_LINE, verbatim=verbatim), 1):
            if cut:
                raise too_long(f"{path}, line {number}")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"{path}, line {number}: not UTF-8 (byte {error.start + 1}, {error.reason})"
                raise PadirError(what, remedy="convert the file with iconv") from None


def byte_lines(file: ByteReader, name: str, longest: int, *, verbatim: bool = False) -> Iterator[Line]:
    """Yields the lines of a binary file, each cut to at most `longest` bytes.

    >>> [line.content for line in byte_lines(io.BytesIO(b"one\\r\\ntwo"), "memory", longest=100)]
    [b'one', b'two']

    Args:
      name: the file's name in messages.
      longest: maximum length of a line in bytes; further bytes are dropped when the next line is read.
      verbatim: keep the byte order mark, and carriage returns before newlines.

    Raises:
      PadirError: the file cannot be read to its end, for example if it is a damaged gzip file.
    """
    with readable(name, getattr(file, "kind", "")):
        most = longest + len(_MARK) + len(b"\r\n")
        mark = _MARK
        while raw := file.readline(most):
            line = raw.removesuffix(b"\n")
            if not verbatim:
                line = line.removesuffix(b"\r").removeprefix(mark)
            mark = b""
            yield Line(line[:longest], len(line) > longest)
            while len(raw) == most and not raw.endswith(b"\n"):  # the line goes on
                raw = file.readline(most)
