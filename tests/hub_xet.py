"""Content-addressed storage ("Xet") of the test Hub: what hf_xet uploads to and downloads from.

A file is cut into chunks; chunks are packed into *xorbs*; a *shard* says for each file which chunk ranges of
which xorbs make it up ("terms"). Formats: https://huggingface.co/docs/xet (shard, xorb, api). hf_xet tries
newer endpoints first (``/v2/shards``, ``/v2/reconstructions``, ``/v1/chunks``, ``/v1/xorb-grants``) and falls
back to the ones here when they answer 404.

When a shard arrives, its files are put together and checked against their sha256 at once. So the rest of the
Hub treats a file the same whichever way it came, and clients without hf_xet can download it too.

Below the root folder::

    xorbs/<hash>        serialised xorbs, as uploaded
    xet/<hash>.json     terms, size and sha256 of one file
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
import time
import uuid
from pathlib import Path
from typing import Any

from hub_store import HubError, Store, write_atomically
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

CAS_PREFIX = "/_xet"
TOKEN_SECONDS = 3600
_RECORD = 48
_SHARD_TAG = b"HFRepoMetaData\0"
_BOOKEND = b"\xff" * 32
_WITH_VERIFICATION = 1 << 31
_WITH_SHA256 = 1 << 30
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_HASH = re.compile(r"[0-9a-f]{64}")


def hash_to_text(data: bytes) -> str:
    """Write a 32-byte hash as Xet does: as four little-endian numbers of 64 bits."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", data))


def lz4_block(source: bytes, target: bytearray) -> None:
    """Decompress one LZ4 block onto the end of ``target``, whose content the block may refer to."""
    position, end = 0, len(source)
    while position < end:
        token = source[position]
        position += 1
        length = token >> 4
        if length == 15:
            while True:
                extra = source[position]
                position += 1
                length += extra
                if extra != 255:
                    break
        target += source[position : position + length]
        position += length
        if position >= end:  # The last sequence has literals only.
            return
        distance = source[position] | source[position + 1] << 8
        position += 2
        length = (token & 15) + 4
        if length == 19:
            while True:
                extra = source[position]
                position += 1
                length += extra
                if extra != 255:
                    break
        start = len(target) - distance
        if distance == 0 or start < 0:
            raise ValueError("LZ4 match outside of the data")
        if distance >= length:
            target += target[start : start + length]
        else:  # The match overlaps its own output: repeat the last `distance` bytes.
            pattern = bytes(target[start:])
            target += (pattern * (length // distance + 1))[:length]


def lz4_frame(source: bytes) -> bytes:
    """Decompress an LZ4 frame. Checksums are not looked at: the caller compares the sha256 of the file."""
    if source[:4] != _LZ4_MAGIC:
        raise ValueError("not an LZ4 frame")
    flags = source[4]
    has_block_checksum, has_size, has_dictionary = flags & 0x10, flags & 0x08, flags & 0x01
    position = 7 + (8 if has_size else 0) + (4 if has_dictionary else 0)
    target = bytearray()
    while True:
        (block_size,) = struct.unpack_from("<I", source, position)
        position += 4
        if block_size == 0:
            return bytes(target)
        is_raw, block_size = block_size >> 31, block_size & 0x7FFFFFFF
        block = source[position : position + block_size]
        if is_raw:
            target += block
        else:
            lz4_block(block, target)
        position += block_size + (4 if has_block_checksum else 0)


def regroup_bytes(grouped: bytes) -> bytes:
    """Undo the grouping by position modulo 4 that precedes LZ4 for tables of numbers."""
    target = bytearray(len(grouped))
    start = 0
    for offset in range(4):
        count = (len(grouped) - offset + 3) // 4
        target[offset::4] = grouped[start : start + count]
        start += count
    return bytes(target)


def chunk_offsets(xorb: bytes) -> list[int]:
    """Start of each chunk of a serialised xorb, then the end of the last; a footer is left out."""
    offsets, position = [0], 0
    # A chunk starts with version 0; an optional footer starts with the letters "XETBLOB".
    while position < len(xorb) and xorb[position] == 0:
        position += 8 + int.from_bytes(xorb[position + 1 : position + 4], "little")
        offsets.append(position)
    if offsets[-1] > len(xorb):
        raise ValueError("the last chunk is cut short")
    return offsets


def unpack_chunk(xorb: bytes, start: int) -> bytes:
    """Decompress the chunk that starts at an offset of a serialised xorb."""
    packed_size = int.from_bytes(xorb[start + 1 : start + 4], "little")
    scheme = xorb[start + 4]
    size = int.from_bytes(xorb[start + 5 : start + 8], "little")
    data = xorb[start + 8 : start + 8 + packed_size]
    if scheme == 1:
        data = lz4_frame(data)
    elif scheme == 2:
        data = regroup_bytes(lz4_frame(data))
    elif scheme != 0:
        raise ValueError(f"unknown compression scheme {scheme}")
    if len(data) != size:
        raise ValueError(f"chunk of {len(data)} bytes instead of {size}")
    return data


def parse_shard(shard: bytes) -> list[dict[str, Any]]:
    """Read the file section of a shard.

    Returns:
        Per file: ``hash``, ``sha256`` (None if the shard does not say) and ``terms``, a list of
        ``{"hash", "unpacked_length", "range": {"start", "end"}}`` with chunk numbers, the end excluded.
    """
    if not shard.startswith(_SHARD_TAG):
        raise ValueError("not a shard")
    files, position = [], _RECORD
    while shard[position : position + 32] != _BOOKEND:
        file_hash, flags, count = struct.unpack_from("<32sII", shard, position)
        position += _RECORD
        terms = []
        for _ in range(count):
            xorb, _flags, length, start, end = struct.unpack_from("<32s4I", shard, position)
            position += _RECORD
            terms.append({"hash": hash_to_text(xorb), "unpacked_length": length, "range": {"start": start, "end": end}})
        if flags & _WITH_VERIFICATION:
            position += _RECORD * count
        sha256 = None
        if flags & _WITH_SHA256:
            sha256 = hash_to_text(shard[position : position + 32])
            position += _RECORD
        files.append({"hash": hash_to_text(file_hash), "sha256": sha256, "terms": terms})
    return files


class XetStorage:
    """Xorbs, file reconstructions and access tokens.

    Args:
        store: Where finished files go, and whose ``xet_hashes`` this object fills.
    """

    def __init__(self, store: Store):
        self.store = store
        self.files: dict[str, dict[str, Any]] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        # Part of the URLs of xorbs, which clients fetch without a token, as with presigned URLs.
        self._signature = secrets.token_urlsafe(16)
        (store.root / "xorbs").mkdir(parents=True, exist_ok=True)
        for path in store.root.glob("xet/*.json"):
            self._register(json.loads(path.read_bytes()))

    # ---- tokens

    def issue_token(self, scope: str, hub_url: str) -> Response:
        """Answer of the ``xet-read-token`` and ``xet-write-token`` routes."""
        token, expires = f"xet_{secrets.token_urlsafe(16)}", time.time() + TOKEN_SECONDS
        self._tokens[token] = (scope, expires)
        return JSONResponse(
            {"accessToken": token, "exp": int(expires), "casUrl": hub_url + CAS_PREFIX},
            headers={
                "X-Xet-Cas-Url": hub_url + CAS_PREFIX,
                "X-Xet-Access-Token": token,
                "X-Xet-Token-Expiration": str(int(expires)),
            },
        )

    def _require_token(self, request: Request, scope: str) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        granted, expires = self._tokens.get(token, ("", 0.0))
        if expires < time.time():
            raise HubError(401, "Missing or expired Xet token")
        if scope == "write" and granted != "write":
            raise HubError(403, "This Xet token cannot write")

    # ---- requests

    async def handle(self, request: Request, path: str, hub_url: str) -> Response:
        """Answer a request below :data:`CAS_PREFIX`.

        Args:
            path: Path below the prefix.
            hub_url: Base URL of the Hub.
        """
        method = request.method
        if method == "POST" and (found := re.fullmatch(r"/v1/xorbs/default/([0-9a-f]{64})", path)):
            self._require_token(request, "write")
            return JSONResponse({"was_inserted": self.add_xorb(found[1], await request.body())})
        if method == "POST" and path == "/v1/shards":
            self._require_token(request, "write")
            is_new = await run_in_threadpool(self.add_shard, await request.body())
            return JSONResponse({"result": int(is_new)})
        if method == "GET" and (found := re.fullmatch(r"/v1/reconstructions/([0-9a-f]{64})", path)):
            self._require_token(request, "read")
            return JSONResponse(self.reconstruction(found[1], request.headers.get("range"), hub_url))
        if method == "GET" and (found := re.fullmatch(r"/xorbs/([0-9a-f]{64})", path)):
            if request.query_params.get("signature") != self._signature:
                raise HubError(403, "Invalid signature")
            return FileResponse(self._xorb_path(found[1]), media_type="application/octet-stream")
        raise HubError(404, f"No such Xet endpoint: {method} {path}")

    def add_xorb(self, xorb_hash: str, data: bytes) -> bool:
        """Keep an uploaded xorb; False if it was there already."""
        try:
            chunk_offsets(data)
        except (ValueError, IndexError) as error:
            raise HubError(400, f"Malformed xorb: {error}") from error
        if self._xorb_path(xorb_hash).exists():
            return False
        write_atomically(self._xorb_path(xorb_hash), data)
        return True

    def add_shard(self, shard: bytes) -> bool:
        """Put the files of a shard together and keep them; False if all were there already."""
        try:
            files = parse_shard(shard)
            new = [file for file in files if file["hash"] not in self.files]
            for file in new:
                self._assemble(file)
        except (ValueError, IndexError, struct.error, FileNotFoundError) as error:
            raise HubError(400, f"Malformed shard: {error}") from error
        return bool(new)

    def reconstruction(self, file_hash: str, byte_range: str | None, hub_url: str) -> dict[str, Any]:
        """How to put a file, or the terms that overlap a byte range of it, together from xorbs."""
        file = self.files.get(file_hash)
        if file is None:
            raise HubError(404, f"Unknown file {file_hash}")
        first, last = 0, file["size"] - 1
        if byte_range:
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", byte_range)
            if found is None or int(found[1]) > last:
                raise HubError(416, "Range not satisfiable")
            first, last = int(found[1]), min(last, int(found[2] or last))
        answer: dict[str, Any] = {"offset_into_first_range": 0, "terms": [], "fetch_info": {}}
        position = 0
        for term in file["terms"]:
            start, position = position, position + term["unpacked_length"]
            if position <= first or start > last:
                continue
            if not answer["terms"]:
                answer["offset_into_first_range"] = first - start
            answer["terms"].append(term)
            chunks, known = term["range"], answer["fetch_info"].setdefault(term["hash"], [])
            if any(item["range"] == chunks for item in known):
                continue
            offsets = chunk_offsets(self._xorb_path(term["hash"]).read_bytes())
            known.append(
                {
                    "range": chunks,
                    "url": f"{hub_url}{CAS_PREFIX}/xorbs/{term['hash']}?signature={self._signature}",
                    # The last byte is included here, unlike in the ranges of chunks.
                    "url_range": {"start": offsets[chunks["start"]], "end": offsets[chunks["end"]] - 1},
                }
            )
        return answer

    # ---- storage

    def _xorb_path(self, xorb_hash: str) -> Path:
        if not _HASH.fullmatch(xorb_hash):
            raise HubError(400, "Malformed hash")
        return self.store.root / "xorbs" / xorb_hash

    def _assemble(self, file: dict[str, Any]) -> None:
        """Write the content of a file below its sha256 and remember how it is made up."""
        digest, size = hashlib.sha256(), 0
        temporary = self.store.blob_path(f"{uuid.uuid4().hex}.tmp")
        loaded: dict[str, tuple[bytes, list[int]]] = {}
        try:
            with temporary.open("wb") as output:
                for term in file["terms"]:
                    if term["hash"] not in loaded:
                        xorb = self._xorb_path(term["hash"]).read_bytes()
                        loaded = {term["hash"]: (xorb, chunk_offsets(xorb))}  # One at a time: up to 64 MB each.
                    xorb, offsets = loaded[term["hash"]]
                    chunks, length = term["range"], 0
                    if chunks["end"] >= len(offsets):
                        raise ValueError(f"xorb {term['hash']} has no chunk {chunks['end'] - 1}")
                    for number in range(chunks["start"], chunks["end"]):
                        data = unpack_chunk(xorb, offsets[number])
                        output.write(data)
                        digest.update(data)
                        length += len(data)
                    if length != term["unpacked_length"]:
                        raise ValueError(f"term of {length} bytes instead of {term['unpacked_length']}")
                    size += length
            if file["sha256"] not in (None, digest.hexdigest()):
                raise ValueError(f"sha256 is {digest.hexdigest()}, the shard says {file['sha256']}")
            os.replace(temporary, self.store.blob_path(digest.hexdigest()))
        finally:
            temporary.unlink(missing_ok=True)
        file = {**file, "sha256": digest.hexdigest(), "size": size}
        write_atomically(self.store.root / "xet" / f"{file['hash']}.json", json.dumps(file).encode())
        self._register(file)

    def _register(self, file: dict[str, Any]) -> None:
        self.files[file["hash"]] = file
        self.store.xet_hashes[file["sha256"]] = file["hash"]
