"""Cuts a byte stream into lines of bounded length.

A watch sends one JSON object a line, whole objects of any size in chunks of any size. What is left
without a line end when the stream stops was cut off and is never given out.
"""


class LineTooLong(Exception):
    """A line grew beyond the limit; the stream cannot be trusted any more."""


class LineSplitter:
    """Feed chunks, get complete lines."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []
        self._pending_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without line ends and without empty lines."""
        head, *rest = chunk.split(b"\n")
        self._pieces.append(head)
        self._check(self._pending_bytes + len(head))
        if not rest:
            self._pending_bytes += len(head)
            return []
        lines = [b"".join(self._pieces), *rest[:-1]]
        self._check(max(map(len, lines)))
        self._pieces = [rest[-1]]
        self._pending_bytes = len(rest[-1])
        self._check(self._pending_bytes)
        return [line for line in lines if line and not line.isspace()]

    def _check(self, line_bytes: int) -> None:
        if line_bytes > self._line_bytes_max:
            raise LineTooLong(f"a line is longer than {self._line_bytes_max} bytes (line_bytes_max)")
