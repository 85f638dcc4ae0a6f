"""Lines of bytes, from plain and gzip files and from pipes: split at newlines only, and never more than one in memory.

A line that no newline ends would be as long as the input is, and a small gzip file can hold a large one: what reads
lines says how many bytes of one it wants at most.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from padir.errors import PadirError

_MARK = b"\xef\xbb\xbf"  # a byte order mark


@runtime_checkable
class ByteReader(Protocol):
    """A binary file, as far as it is needed."""

    def readline(self, size: int, /) -> bytes: ...


class Line(NamedTuple):
    """A line without its end (LF or CRLF), without a byte order mark if it is the first; `cut` if it went on."""

    content: bytes
    cut: bool


def open_bytes(path: str | os.PathLike[str], name: str = "") -> io.BufferedIOBase:
    """A file to read, unzipped if it is called .gz.

    Args:
      name: of the file in messages, such as the option that gave it; "" is its path.

    Raises:
      PadirError: it cannot be opened.
    """
    try:
        return gzip.GzipFile(path, "rb") if Path(path).suffix == ".gz" else open(path, "rb")
    except OSError as error:
        raise PadirError(f"cannot read {name or path} ({error.strerror or error}): check the path") from None


def byte_lines(file: ByteReader, name: str, longest: int) -> Iterator[Line]:
    """The lines of a file.

    Args:
      name: of the file, for messages.
      longest: how many bytes of a line are kept; the rest of it is read and dropped.

    Raises:
      PadirError: it cannot be read to its end, as a damaged gzip file.
    """
    try:
        most = longest + len(_MARK) + len(b"\r\n")
        mark = _MARK
        while raw := file.readline(most):
            line = raw.removesuffix(b"\n").removesuffix(b"\r").removeprefix(mark)
            mark = b""
            while len(raw) == most and not raw.endswith(b"\n"):  # it goes on
                raw = file.readline(most)
            yield Line(line[:longest], len(line) > longest)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PadirError(f"{name} is not a whole gzip file ({error}): fetch it again") from None
    except OSError as error:
        raise PadirError(f"cannot read {name} ({error.strerror or error}): check the path") from None
