"""A `dcgmi` that does what a test tells it: an executable script, so the real adapter starts a real program.

fake = FakeDcgmi(tmp_path)
fake.say("health", recorded("health-failure.json"))
fake.hang("diag")
DcgmTool(fake.command, clock=...)
"""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "data/dcgm"

_SCRIPT = """#!/bin/sh
# Its answers are files beside it, read anew at each start: WHAT.out, WHAT.exit, WHAT.do
here=$(dirname "$0")
echo "$*" >> "$here/calls"
env > "$here/environment"
echo $$ > "$here/pid"
what=$1
case "$1" in -v|--version) what=version ;; esac
previous=
for word in "$@"; do
  [ "$previous" = "-r" ] && [ -e "$here/$what-$word.out" ] && what=$what-$word
  previous=$word
done
action=$(cat "$here/$what.do" 2>/dev/null)
case "$action" in
  hang) cat "$here/$what.out" 2>/dev/null; exec sleep 600 ;;
  slow) sleep 0.3 ;;
  flood) head -c 100000000 /dev/zero | tr '\\\\0' '{'; exit 0 ;;
  crash) cat "$here/$what.out" 2>/dev/null; kill -SEGV $$ ;;
esac
cat "$here/$what.out" 2>/dev/null
exit $(cat "$here/$what.exit" 2>/dev/null || echo 0)
"""


def recorded(name: str) -> bytes:
    """One file of tests/data/dcgm."""
    return (DATA / name).read_bytes()


class FakeDcgmi:
    """`say`, `hang`, `flood`, `crash` and `slow` change what the next start does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "dcgmi-fake"
        self._folder.mkdir()
        self.path = self._folder / "dcgmi"
        self.path.write_text(_SCRIPT)
        self.path.chmod(0o755)
        self.command = (str(self.path),)
        self.say("version", recorded("version-4.txt"))
        self.say("health", recorded("health-healthy.json"))

    def say(self, what: str, output: bytes | str, exit_code: int = 0) -> None:
        """`what` is health, version, diag, or diag-NAME for a test that is run alone."""
        self._put(f"{what}.do", b"")
        self._put(f"{what}.out", output.encode() if isinstance(output, str) else output)
        self._put(f"{what}.exit", str(exit_code).encode())

    def hang(self, what: str, partial: bytes = b"") -> None:
        self._do(what, "hang", partial)

    def flood(self, what: str) -> None:
        self._do(what, "flood", b"")

    def crash(self, what: str, partial: bytes = b"") -> None:
        self._do(what, "crash", partial)

    def slow(self, what: str) -> None:
        self._put(f"{what}.do", b"slow")

    def engine_down(self) -> None:
        """No host engine answers any more."""
        self.say("version", recorded("version-no-engine.txt"))  # ends with 0 all the same
        self.say("health", recorded("engine-down.txt"), 235)

    def engine_up(self) -> None:
        self.say("version", recorded("version-4.txt"))
        self.say("health", recorded("health-healthy.json"))

    def calls(self) -> list[str]:
        """The arguments of each start so far."""
        try:
            return (self._folder / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []

    def pid(self) -> int | None:
        """Of the last start."""
        try:
            return int((self._folder / "pid").read_text() or 0) or None
        except FileNotFoundError:
            return None

    def environment(self) -> dict[str, str]:
        """Of the last start."""
        lines = (self._folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def _do(self, what: str, action: str, partial: bytes) -> None:
        self._put(f"{what}.out", partial)
        self._put(f"{what}.do", action.encode())

    def _put(self, name: str, content: bytes) -> None:
        fresh = self._folder / f".{name}"
        fresh.write_bytes(content)
        fresh.replace(self._folder / name)
