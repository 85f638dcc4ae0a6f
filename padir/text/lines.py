"""Reads lines of bytes from plain files, gzip files and pipes, one at a time; only newlines end a line.

Every reader limits the bytes of a line, because input without newlines is one line, and a small gzip file can hold a
huge line.
"""

from __future__ import annotations

import gzip
import io
import os
import select
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Protocol, runtime_checkable

from padir.errors import PadirError
from padir.storage.files import check_local

_BLOCK = 1 << 16
_MARK = b"\xef\xbb\xbf"  # a byte order mark


@runtime_checkable
class ByteReader(Protocol):
    """An object with `readline`, the only method of a binary file that `byte_lines` needs."""

    def readline(self, size: int, /) -> bytes: ...


class Line(NamedTuple):
    """A line of bytes without line end (LF or CRLF) and byte order mark; `cut` is True if it exceeded the limit."""

    content: bytes
    cut: bool


class TimedReader:
    """Lines of a terminal, a pipe or a file, and the answer to whether the next line is there already.

    Args:
      file: an open file with a descriptor; nothing has been read from it yet.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file  # the reference keeps the file open
        self._buffer, self._ended = bytearray(), False

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


def open_bytes(path: str | os.PathLike[str], name: str = "") -> io.BufferedIOBase:
    """Opens a file for reading bytes, decompressed if its name ends in .gz.

    Args:
      name: the file's name in messages, for example a command-line option; "" stands for the path.

    Raises:
      PadirError: the file cannot be opened.
    """
    check_local(path)
    try:
        return gzip.GzipFile(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb")
    except OSError as error:
        raise PadirError(f"cannot read {name or path} ({error.strerror or error})", remedy="check the path") from None


def byte_lines(file: ByteReader, name: str, longest: int) -> Iterator[Line]:
    """Yields the lines of a binary file, each cut to at most `longest` bytes.

    >>> [line.content for line in byte_lines(io.BytesIO(b"one\\r\\ntwo"), "memory", longest=100)]
    [b'one', b'two']

    Args:
      name: the file's name in messages.
      longest: maximum length of a line in bytes; further bytes are read and dropped.

    Raises:
      PadirError: the file cannot be read to its end, for example if it is a damaged gzip file.
    """
    try:
        most = longest + len(_MARK) + len(b"\r\n")
        mark = _MARK
        while raw := file.readline(most):
            line = raw.removesuffix(b"\n").removesuffix(b"\r").removeprefix(mark)
            mark = b""
            while len(raw) == most and not raw.endswith(b"\n"):  # the line goes on
                raw = file.readline(most)
            yield Line(line[:longest], len(line) > longest)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PadirError(f"{name} is not a whole gzip file ({error})", remedy="fetch it again") from None
    except OSError as error:
        raise PadirError(f"cannot read {name} ({error.strerror or error})", remedy="check the path") from None
