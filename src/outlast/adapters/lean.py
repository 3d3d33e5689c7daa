"""aiohttp without the certificates that nobody here asks it for.

It fills two TLS contexts with the machine's certificate authorities as it is imported: 2.5 MB for ever,
while every connection of ours brings a context of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_VARIABLE: Final = "SSL_CERT_FILE"
"""Where OpenSSL looks for the default authorities, each time that it is asked to load them."""


@contextmanager
def without_default_authorities() -> Iterator[None]:
    """Around the first import of aiohttp; contexts that are made afterwards have the authorities again."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
