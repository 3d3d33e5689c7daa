"""The agent's process carries nothing that nobody uses, and verifies servers all the same."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys

SCRIPT = """
import json, os, ssl, sys
from outlast.adapters.event_log import write_events_to_stderr
from outlast.adapters.lean import without_default_authorities
write_events_to_stderr()
with without_default_authorities():
    import outlast.agent.main
import aiohttp.connector as connector
contexts = (connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED)
print(json.dumps({
    "authorities": [context.cert_store_stats()["x509_ca"] for context in contexts],
    "verifies": contexts[0].verify_mode == ssl.CERT_REQUIRED,
    "own": ssl.create_default_context().cert_store_stats()["x509_ca"],
    "variable": os.environ.get("SSL_CERT_FILE"),
    "loaded": sorted(name for name in sys.modules if sys.modules[name] is not None),
}))
"""


def _seen(**environment: str) -> dict[str, object]:
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        check=True,
        env={**os.environ, **environment},
        timeout=60,
    ).stdout
    seen: dict[str, object] = json.loads(output)
    return seen


def test_aiohttp_keeps_no_authorities_and_our_own_contexts_have_them() -> None:
    """Its contexts trust nobody, so that one used by mistake fails closed; ours are as on this machine."""
    seen = _seen()
    assert seen["authorities"] == [0, 0]
    assert seen["verifies"] is True
    assert seen["own"] == ssl.create_default_context().cert_store_stats()["x509_ca"]
    assert seen["variable"] == os.environ.get("SSL_CERT_FILE")


def test_a_users_own_authorities_are_given_back() -> None:
    """SSL_CERT_FILE means afterwards what it meant before."""
    assert _seen(SSL_CERT_FILE="/etc/some.pem")["variable"] == "/etc/some.pem"


def test_what_only_people_at_a_terminal_need_is_not_loaded() -> None:
    """The parser of command lines, colours, YAML, templates, servers, test tools."""
    loaded = _seen()["loaded"]
    assert isinstance(loaded, list)
    for name in ("cyclopts", "rich", "yaml", "jinja2", "aiohttp.web", "multiprocessing", "greenlet"):
        assert name not in loaded
    assert not [name for name in loaded if name.startswith(("outlast.cli", "outlast.web", "outlast.sim"))]
