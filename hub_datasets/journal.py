"""Records appended to a file one line at a time, so that a process that dies loses none of those it had finished.

A line is JSON that ends in its own checksum. What was torn in writing fails it, and readers stop before it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

_MARK, _END = b',"checksum":"', b'"}\n'
_TAIL = len(_MARK) + 8 + len(_END)


class Line(NamedTuple):
    """A whole line.

    Attributes:
        number: From 1.
        start: Where it begins, in bytes.
        end: Where the next one begins.
        record: What it holds.
    """

    number: int
    start: int
    end: int
    record: dict[str, Any]


def encode_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON that ends in the CRC-32 of what precedes.

    ASCII alone: so no text of a model, not even half a surrogate pair, can break a line or its encoding.
    """
    body = json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii")
    return body[:-1] + _MARK + b"%08x" % zlib.crc32(body) + _END


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The inverse of `encode_line`, without the checksum; None for a line that is damaged or not whole."""
    body = line[:-_TAIL] + b"}"
    if line[-_TAIL:] != _MARK + b"%08x" % zlib.crc32(body) + _END:
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def read_lines(path: Path) -> Iterator[Line]:
    """The whole lines; bad ones are fine at the end, where writing stopped, and damage anywhere else.

    Raises:
        ValueError: A damaged line is followed by a whole one.
    """
    if not path.exists():
        return
    end, bad = 0, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            start, end = end, end + len(line)
            record = decode_line(line)
            if record is None:
                bad = bad or number
            elif bad:
                raise ValueError(
                    f"{path}, line {bad} is damaged, and it is not the last one, so no interrupted run left it; "
                    "restore the file, or delete the line to have its episode played again"
                )
            else:
                yield Line(number, start, end, record)


def open_to_append(path: Path, end: int) -> tuple[IO[bytes], int]:
    """The file, ready to append after the last whole line, which ends at `end`; and how many torn bytes went."""
    file = path.open("ab")
    dropped = file.tell() - end
    if dropped:
        file.truncate(end)
    return file, dropped
