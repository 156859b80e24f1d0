"""The records of a file, one after the other: a JSON list, or JSON lines, plain or compressed by gzip.

Which of the two a file is, is seen at its beginning. Either is read piece by piece, so that memory does not grow with
the file. `json` reads no list piece by piece, and a list that is one line of hundreds of megabytes is usual here; its
`raw_decode` does the work for one record at a time.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

CHUNK = 2**18  # characters that are read at once
LONGEST = 2**26  # characters of a record; what is longer is taken for broken
# A JSON error so near to the end of what has been read may come from the cut: the longest literal is -Infinity.
CUT_LITERAL = 16
BLANK = object()

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Entry(NamedTuple):
    """One record of a file.

    Attributes:
        place: `line 7` or `record 7`, from 1.
        value: The record; `BLANK` for a blank line between others.
        problem: Why it could not be read, None where it could.
    """

    place: str
    value: Any
    problem: str | None = None


def read_entries(
    path: Path, *, lists: bool = False, told: Callable[[int], object] = lambda at: None
) -> Iterator[Entry]:
    """The entries of a file, in order.

    A line that is no JSON is an entry with a problem. A list is broken from there on, since nothing says where the next
    record begins; so is a compressed file that is damaged.

    Args:
        path: The file.
        lists: Whether a record can itself be a list, of objects with the key `state`.
        told: Told how many bytes of the file have been read.

    Raises:
        OSError: The file cannot be read.
    """
    with _opened(path) as (_, stream):
        try:
            as_list = _is_list(stream.read(CHUNK), lists)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            as_list = False
    with _opened(path) as (raw, stream):
        place = f"{'record' if as_list else 'line'} 1"
        try:
            for entry in _list_entries(stream) if as_list else _line_entries(stream):
                place = entry.place
                told(raw.tell())
                yield entry
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield Entry(
                f"after {place}", None, f"the compressed data are cut off or damaged ({error}); fetch them again"
            )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedReader, TextIO]]:
    with path.open("rb") as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        binary: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        # What is not UTF-8 becomes characters that no text may have, so that it costs one record and not the file.
        yield raw, io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape")


def _is_list(beginning: str, lists: bool) -> bool:
    """Whether a file is a JSON list of records; else it has one on each line."""
    first, place = _next_mark(beginning, 0)
    if first != "[":
        return False
    inner, place = _next_mark(beginning, place + 1)
    if inner != "{" or not lists:
        return True
    try:
        value, _ = _DECODER.raw_decode(beginning, place)
    except (ValueError, RecursionError):
        return '"state"' not in beginning
    return "state" not in value


def _next_mark(buffer: str, place: int) -> tuple[str, int]:
    found = _SPACE.match(buffer, place)
    assert found is not None, "the pattern fits everywhere"
    return buffer[found.end() : found.end() + 1], found.end()


def _line_entries(stream: TextIO) -> Iterator[Entry]:
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        place = f"line {number}"
        if len(line) > LONGEST:
            while line and not line.endswith("\n"):
                line = stream.readline(LONGEST)
            yield Entry(place, None, f"it is longer than {LONGEST:,} characters")
        elif not line.strip():
            yield Entry(place, BLANK)
        else:
            try:
                yield Entry(place, json.loads(line))
            except (ValueError, RecursionError) as error:
                yield Entry(place, None, f"it is no JSON ({_reason(error)})")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, character {min(error.pos + 1, len(error.doc))} of {len(error.doc)}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


class _Window:
    """A stretch of a stream. `buffer` from `start` on has not been used yet."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.buffer, self.start = "", 0

    def more(self) -> bool:
        """Read on; False where the stream ends. What is read doubles with what has been kept, so that a record of n
        characters is looked at log n times."""
        rest = self.buffer[self.start :]
        piece = self._stream.read(max(CHUNK, len(rest)))
        if piece:
            self.buffer, self.start = rest + piece, 0
        return bool(piece)

    def mark(self) -> str:
        """The next character that is no space, `start` at it; empty where the stream ends."""
        while True:
            mark, self.start = _next_mark(self.buffer, self.start)
            if mark or not self.more():
                return mark

    def value(self) -> tuple[Any, str | None]:
        """The next JSON value, or why there is none."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.buffer, self.start)
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated string")
                broken = not open_text and error.pos < len(self.buffer) - CUT_LITERAL
                if broken:
                    return None, f"{error.msg}, character {error.pos - self.start + 1} of the record"
            except (ValueError, RecursionError) as error:
                return None, _reason(error)
            else:
                # `1` may be what the cut left of `1.5e-3`.
                if end < len(self.buffer) - CUT_LITERAL or not self.more():
                    self.start = end
                    return value, None
                continue
            if len(self.buffer) - self.start > LONGEST:
                return None, f"it is longer than {LONGEST:,} characters"
            if not self.more():
                return None, "the file ends within it"


def _list_entries(stream: TextIO) -> Iterator[Entry]:
    window, number = _Window(stream), 1
    window.mark()
    window.start += 1
    while (mark := window.mark()) != "]":
        place = f"record {number}"
        value, problem = window.value() if mark else (None, "the file ends before the list does")
        if problem is None:
            yield Entry(place, value)
            number += 1
            mark = window.mark()
            if mark == ",":
                window.start += 1
            elif mark != "]":
                problem = f"the list goes on with {mark!r}" if mark else "the file ends before the list does"
                place = f"record {number}"
        if problem is not None:
            yield Entry(place, None, f"the list is broken there, and what follows is lost: {problem}")
            return
    window.start += 1
    if mark := window.mark():
        yield Entry(f"record {number}", None, f"the list has ended, and the file goes on with {mark!r}")
