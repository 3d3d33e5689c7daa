"""How to talk to an API server: address, trust, and as whom; plus one plain blocking request.

Tests that check an answer to the letter (status, reason, causes) need the wire, not a client that
already interprets it.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

REQUEST_DEADLINE_S = 30.0

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


class Refused(Exception):
    """The server answered with an error; `answer` has status, reason and message."""

    def __init__(self, request: str, answer: Answer) -> None:
        super().__init__(f"{request}: {answer.status} {answer.reason}: {answer.message}")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Answer:
    """Status code, decoded body (or the text, when it is not JSON) and the server's warnings."""

    status: int
    body: Any
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the request did what it asked."""
        return self.status < 400

    @property
    def reason(self) -> str:
        """Machine reason of a Status object, or nothing."""
        return str(self.body.get("reason", "")) if isinstance(self.body, dict) else ""

    @property
    def message(self) -> str:
        """The server's words."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else str(self.body)


@dataclass(frozen=True, slots=True)
class Access:
    """One identity at one API server; immutable, `as_user` and `with_token` give others."""

    url: str
    ca_file: Path | None = None
    token: str = ""
    impersonate: str = ""
    impersonate_groups: tuple[str, ...] = ()

    def as_user(self, user: str, groups: Sequence[str] = ()) -> Access:
        """The same credentials acting as somebody else (needs an administrator's token)."""
        return replace(self, impersonate=user, impersonate_groups=tuple(groups))

    def as_kubelet(self, node: str) -> Access:
        """As the kubelet of that node: Node authorizer and NodeRestriction apply."""
        return self.as_user(f"system:node:{node}", ("system:nodes", "system:authenticated"))

    def with_token(self, token: str) -> Access:
        """The same server with another bearer token."""
        return replace(self, token=token, impersonate="", impersonate_groups=())

    def headers(self) -> list[tuple[str, str]]:
        """Request headers that say who is asking."""
        headers = [("Authorization", f"Bearer {self.token}")] if self.token else []
        if self.impersonate:
            headers.append(("Impersonate-User", self.impersonate))
            headers += [("Impersonate-Group", group) for group in self.impersonate_groups]
        return headers

    def ssl_context(self) -> ssl.SSLContext | None:
        """Trust in this server only; None for plain HTTP."""
        return ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file else None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        deadline_s: float = REQUEST_DEADLINE_S,
    ) -> Answer:
        """One request, whatever the answer. Raises OSError when there is none."""
        address = urlsplit(self.url)
        host, port = address.hostname or "127.0.0.1", address.port
        context = self.ssl_context()
        if context:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=deadline_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=deadline_s)
        try:
            connection.putrequest(method, path)
            for name, value in self.headers():
                connection.putheader(name, value)
            data = b"" if body is None else json.dumps(body).encode()
            if body is not None:
                connection.putheader("Content-Type", content_type)
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            response = connection.getresponse()
            raw = response.read()
            warnings = tuple(response.headers.get_all("Warning") or ())
            is_json = (response.headers.get("Content-Type") or "").startswith("application/json")
            return Answer(response.status, json.loads(raw) if is_json else raw.decode(), warnings)
        finally:
            connection.close()

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = JSON) -> Any:
        """One request that must succeed; returns the body. Raises Refused."""
        answer = self.ask(method, path, body, content_type=content_type)
        if not answer.ok:
            raise Refused(f"{method} {path}", answer)
        return answer.body

    def get(self, path: str) -> Any:
        """Read an object or a list. Raises Refused."""
        return self.request("GET", path)

    def write_kubeconfig(self, path: Path, *, name: str = "outlast-test", namespace: str = "") -> Path:
        """A kubeconfig with this identity as its only context; mode 0600."""
        cluster: dict[str, Any] = {"server": self.url}
        if self.ca_file:
            cluster["certificate-authority"] = str(self.ca_file)
        user: dict[str, Any] = {"token": self.token} if self.token else {}
        if self.impersonate:
            user |= {"as": self.impersonate, "as-groups": list(self.impersonate_groups)}
        context = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path
