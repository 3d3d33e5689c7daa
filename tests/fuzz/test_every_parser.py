"""Every harness on its seeds and on a fixed set of damaged ones: the short run that each `make test` has.

What a long run under coverage guidance finds (`make fuzz`) comes in here as an input of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest

from tests.fuzz.targets import TARGETS

BUDGET_S = 1.0
"""For the damaged inputs of one target."""
DAMAGED_MAX = 300
INPUT_S = 1.0
WORDS = (
    b"\n",
    b"\0",
    b"\xff\xfe",
    b"-1",
    b"9" * 400,
    b"[" * 200,
    b'"',
    b"\\x0",
    b";",
    b",",
    "²٣".encode(),
    b"nan",
)

FOUND: dict[str, tuple[bytes, ...]] = {
    "recorded_log": (
        b"Nov 30 12:00:00 n kernel: [ 1.000000] NVRM: Xid (PCI:0000:10:1c): 79, x\n"
        b"[999999999999.000000] NVRM: Xid (PCI:0000:10:1c): 79, x\n"
        b"[9999999999999.000000] NVRM: Xid (PCI:0000:10:1c): 79, x\n",
    ),
    "host_files": (b"22 1 259\0\0:1 / / rw shared:1 - ext3 /dev/nvme0n1p1 ro\n\xff\xff",),
}
"""Inputs that once failed, by target."""


def damaged(seeds: list[bytes], rng: Random) -> Iterator[bytes]:
    """Seeds with pieces cut out, doubled, overwritten and put together."""
    for _ in range(DAMAGED_MAX):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            at = rng.randint(0, len(data))
            match rng.randint(0, 4):
                case 0:
                    del data[at : at + rng.randint(1, 40)]
                case 1:
                    data[at:at] = rng.choice(WORDS)
                case 2:
                    data[at : at + 1] = rng.randbytes(1)
                case 3:
                    data[at:at] = data[at : at + rng.randint(1, 200)]
                case 4:
                    data[at:] = rng.choice(seeds)[rng.randint(0, 100) :]
        yield bytes(data[:8192])


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_parser(name: str) -> None:
    """No exception, no broken promise, and no input takes a second."""
    target = TARGETS[name]
    seeds = target.seeds()
    for data in (*FOUND.get(name, ()), b"", *seeds):
        took_s = timed(name, data)
        assert took_s < INPUT_S
    until_s = time.process_time() + BUDGET_S
    for data in damaged(seeds, Random(name)):
        assert timed(name, data) < INPUT_S
        if time.process_time() > until_s:
            break


def timed(name: str, data: bytes) -> float:
    """Processor time of one input; says which it was when it fails."""
    begun_s = time.process_time()
    try:
        TARGETS[name].run(data)
    except Exception as error:
        error.add_note(f"{name} on {data[:400]!r}")
        raise
    return time.process_time() - begun_s
