"""The process that reads files which a driver may be slow to answer, or never does.

Run by file path (`python -I -S file_worker.py`): imports nothing of ours, starts in some 20 ms. It ends
when its input ends. A counter of a network device may be a command to its firmware; should that never
return, this process is lost and not the agent.

    frame    = magic, payload length, request id, payload (JSON)
    request  = {"folder": path, "names": [relative path, ...]}
    answer   = {"texts": {name: text}, "errors": {name: errno}}
"""

from __future__ import annotations

import json
import os
import struct

MAGIC = b"OLNV"
HEADER = struct.Struct("<4sII")
PROCESS_NAME = "outlast-files"
"""How a worker is recognised in /proc after its agent is gone; the kernel keeps 15 bytes."""

TEXT_BYTES_MAX = 4096
"""A longer file is cut here: these are files of one value, or a few lines."""


def _texts(folder: str, names: list[str]) -> dict[str, dict[str, str] | dict[str, int]]:
    texts, errors = {}, {}
    for name in names:
        try:
            fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                texts[name] = os.read(fd, TEXT_BYTES_MAX).decode("utf-8", "replace").strip()
            finally:
                os.close(fd)
        except OSError as error:
            errors[name] = error.errno or 0
    return {"texts": texts, "errors": errors}


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def main() -> int:
    """Answer until the input ends."""
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123 - pathlib costs 3 MB here
        comm.write(PROCESS_NAME)
    try:
        while True:
            _, length, request_id = HEADER.unpack(_read(HEADER.size))
            request = json.loads(_read(length))
            payload = json.dumps(_texts(request["folder"], request["names"])).encode()
            frame = memoryview(HEADER.pack(MAGIC, len(payload), request_id) + payload)
            while frame:
                frame = frame[os.write(1, frame) :]
    except (EOFError, BrokenPipeError):
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
