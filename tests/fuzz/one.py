"""`python -m tests.fuzz.one TARGET [options of libFuzzer]`: one harness, in a process of its own."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["outlast"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, lambda data: target.run(bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
