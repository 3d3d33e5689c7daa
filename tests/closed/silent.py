"""A mounted file system that never answers: whoever opens a file in it sleeps where no signal reaches.

A FUSE mount whose daemon takes every question and answers none. A killed process cannot end until the
daemon goes, and that is when its descriptor is closed: a test run that dies leaves nothing asleep.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_INIT = 26
_GETATTR = 3
_INIT_OUT = struct.pack("<IIIIHHII", 7, 31, 65536, 0, 12, 9, 4096, 1).ljust(64, b"\0")
_MNT_DETACH = 2
_REQUEST_BYTES = 256 * 1024


@contextmanager
def silent_mount(folder: Path) -> Iterator[Path]:
    """The mount point; any name below it is never found and never missing."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if libc.mount(b"silent", os.fsencode(folder), b"fuse", 0, options.encode()) != 0:
        os.close(device)
        raise OSError(ctypes.get_errno(), "cannot mount FUSE")
    daemon = threading.Thread(target=_serve, args=(device,), daemon=True)
    daemon.start()
    try:
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), _MNT_DETACH | 1)  # forced: every question is answered with an error
        daemon.join(5)
        os.close(device)


def _serve(device: int) -> None:
    while True:
        try:
            request = os.read(device, _REQUEST_BYTES)
        except OSError:
            return
        _, opcode, unique, *_ = _IN.unpack_from(request)
        if opcode == _INIT:
            answer = _INIT_OUT
        elif opcode == _GETATTR:
            # Valid for an hour; a folder, so that the mount point itself can be looked at.
            attributes = struct.pack(
                "<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0
            )
            answer = struct.pack("<QII", 3600, 0, 0) + attributes
        else:
            continue
        try:
            os.write(device, _OUT.pack(_OUT.size + len(answer), 0, unique) + answer)
        except OSError:
            return
