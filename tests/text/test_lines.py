"""Lines of bytes: split as they should be, whole or cut, and never read further than asked."""

import gzip
import io
import itertools
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses

from padir.streaming import _CHUNK_CHARACTERS, LONGEST_INPUT, _chunks, lines
from padir.text.lines import TimedReader, byte_lines, open_bytes


def always():
    return True


PIECES = st.lists(st.sampled_from([b"\n", b"\r", b"\xef\xbb\xbf", b"a", b"bc", b"\x00", b"\xe2\x80\xa8"]), max_size=30)


@given(PIECES)
def test_only_newlines_end_lines(pieces):
    content = b"".join(pieces)
    expected = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if expected[-1] == b"" and (len(expected) > 1 or not content):
        expected.pop()
    got = [line.content for line in byte_lines(io.BytesIO(content), "x", 1_000)]
    assert got == [line.removesuffix(b"\r") for line in expected]


@given(PIECES, st.integers(1, 6))
def test_a_cut_line_is_the_beginning_of_the_whole_one_and_moves_no_other(pieces, longest):
    content = b"".join(pieces)
    whole = list(byte_lines(io.BytesIO(content), "x", 1_000))
    cut = list(byte_lines(io.BytesIO(content), "x", longest))
    assert [line.content for line in cut] == [line.content[:longest] for line in whole]
    assert [line.cut for line in cut] == [len(line.content) > longest for line in whole]


def test_a_line_that_never_ends_is_read_in_pieces_and_dropped():
    asked = []

    class Zeros:
        def readline(self, size):
            asked.append(size)
            if len(asked) == 50:
                raise OSError(5, "enough")
            return b"\x00" * size

    refuses(lambda: list(byte_lines(Zeros(), "x", 1_000)), "cannot read x ... enough")
    assert len(asked) == 50 and max(asked) <= 1_010


class TestStream:
    def read(self, content, name=""):
        warnings = []
        return list(lines(io.BytesIO(content), warnings.append, name)), warnings

    @given(st.binary(max_size=60))
    def test_any_bytes_are_text_on_as_many_lines(self, content):
        got, _ = self.read(content)
        assert len(got) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        for line in got:
            line.encode("utf-8")  # no surrogates
            assert "\n" not in line

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff"), max_size=30))
    def test_text_comes_as_it_is(self, text):
        assert self.read(text.encode() + b"\r\n")[0] == [text]

    def test_too_long_a_line_is_cut_with_one_warning(self):
        (first, second), warnings = self.read("é".encode() * LONGEST_INPUT + b"\nzwei\n", "in.txt")
        assert set(first) == {"é"} and len(first) == LONGEST_INPUT // 2 and second == "zwei"
        assert warnings == ["in.txt, line 1 has more than 1,048,576 bytes: the rest of it was left out"]
        (first, _), warnings = self.read(b"a" + "é".encode() * LONGEST_INPUT + b"\nzwei\n")
        assert len(warnings) == 1 and first[:-1] == "a" + "é" * (len(first) - 2) and first[-1] == "\ufffd"

    def test_bytes_that_are_no_text_are_told_of_in_a_line_that_is_cut_too(self):
        _, warnings = self.read(b"\xff" + b"a" * LONGEST_INPUT)
        assert len(warnings) == 2 and "is not UTF-8 (byte 1)" in warnings[1]

    def test_chunks_have_few_lines_or_few_characters(self):
        assert list(map(len, _chunks(iter("abcdefghijkl"), 2, always))) == [2, 4, 6]
        assert max(map(len, _chunks(iter("a" * 200), 2, always))) == 2 * 16
        long = ["x" * (_CHUNK_CHARACTERS // 2)] * 5
        assert list(map(len, _chunks(iter(long), 100, always))) == [2, 2, 1]
        assert list(_chunks([], 3, always)) == []

    def test_nothing_is_read_ahead_of_a_chunk(self):
        source = itertools.count()
        chunks = _chunks(map(str, source), 4, always)
        next(chunks), next(chunks)
        assert next(source) == 12

    def test_a_line_that_is_not_there_ends_a_chunk(self):
        ready = iter([True, False, True, True])
        assert list(_chunks(iter("abcd"), 100, lambda: next(ready))) == [["a", "b"], ["c", "d"]]


class TestTimedReader:
    @given(PIECES, st.integers(1, 6))
    def test_it_reads_what_a_file_reads(self, pieces, size):
        content = b"".join(pieces)
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            reader, expected = TimedReader(file), io.BytesIO(content)
            while line := expected.readline(size):
                assert reader.readline(size) == line
            assert reader.readline(size) == reader.readline(size) == b"" and reader.ready(0.0)

    def test_half_a_line_is_not_ready(self):
        reader, writer = os.pipe()
        with open(reader, "rb") as file:
            timed = TimedReader(file)
            assert not timed.ready(0.01)
            os.write(writer, b"eins\nzw")
            assert timed.ready(60.0) and timed.readline(100) == b"eins\n" and not timed.ready(0.01)
            os.close(writer)
            assert timed.ready(60.0) and timed.readline(100) == b"zw" and timed.readline(100) == b""


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (lambda whole: whole[:-1], "not a whole gzip file ... end-of-stream"),
        (lambda whole: whole[:-4] + b"\x00\x00\x00\x01", "not a whole gzip file ... Incorrect length"),
        (lambda whole: whole[:-8] + b"\x00\x00\x00\x01" + whole[-4:], "not a whole gzip file ... CRC"),
        (lambda whole: whole + b"garbage", "not a whole gzip file ... Not a gzipped"),
        (lambda whole: whole[:40] + b"\xff\xff\xff" + whole[43:], "not a whole gzip file"),
        (lambda whole: b"", None),
        (lambda whole: whole + b"\x00" * 512, None),  # what tape and some copies add
        (lambda whole: whole + whole, None),
    ],
)
def test_gzip_files_with_a_bad_tail(tmp_path, tail, message):
    path = tmp_path / "a.gz"
    numbers = b"".join(b"%d\n" % number for number in range(1_000))
    path.write_bytes(tail(gzip.compress(numbers)))

    def read():
        with open_bytes(path) as file:
            return list(byte_lines(file, "a.gz", 100))

    if message is None:
        assert len(read()) in (0, 1_000, 2_000)
    else:
        refuses(read, f"a.gz is {message}")


@pytest.mark.parametrize("name", ["nothing.txt", "nothing.gz", "."])
def test_what_cannot_be_opened_is_called_as_the_caller_says(tmp_path, name):
    refuses(open_bytes, "cannot read --input x ( ... ): check the path", tmp_path / name, "--input x")
