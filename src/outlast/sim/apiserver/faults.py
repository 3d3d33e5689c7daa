"""Misbehaviour on demand, per class of request.

A rule matches requests by verb, kind, name, namespace and client, and acts a bounded number of times;
tests and the simulator add rules while the server runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

RULES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """What a rule can look at."""

    verb: str
    plural: str
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    client: str = ""
    """The User-Agent."""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests; an empty field matches all. `client` is a substring of the User-Agent."""

    verb: str = ""
    """get, list, watch, create, update, patch, delete, deletecollection; `write` is all that change."""
    plural: str = ""
    name: str = ""
    namespace: str = ""
    subresource: str | None = None
    client: str = ""
    user: str = ""

    def matches(self, request: Request) -> bool:
        """Whether the request is of this class."""
        if self.verb == "write":
            if request.verb in ("get", "list", "watch"):
                return False
        elif self.verb and self.verb != request.verb:
            return False
        if self.subresource is not None and self.subresource != request.subresource:
            return False
        pairs = (
            (self.plural, request.plural),
            (self.name, request.name),
            (self.namespace, request.namespace),
            (self.user, request.user),
        )
        return all(not want or want == have for want, have in pairs) and self.client in request.client


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens instead of, or before, the answer."""

    status: int = 0
    """429 is answered as priority and fairness does (text/plain, Retry-After), all others as a Status."""
    retry_after_s: int = 1
    delay_s: float = 0.0
    """Real seconds before anything else happens."""
    after_write: bool = False
    """The write happens, then the answer is lost: the connection is cut."""
    disconnect: bool = False
    """The connection is cut without an answer."""
    drop_watch_after: int | None = None
    """A watch ends cleanly after so many events."""
    freeze_watch_after: int | None = None
    """A watch stays open and says nothing more after so many events."""
    cut_watch_after: int | None = None
    """A watch is cut in the middle of a line after so many events."""


@dataclass(slots=True)
class Rule:
    """A rule in force; `hits` counts how often it acted."""

    number: int
    match: Match
    fault: Fault
    times: int | None
    hits: int = 0


@dataclass(slots=True)
class Faults:
    """The rules in force, first match wins."""

    _rules: list[Rule] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, match: Match, fault: Fault, *, times: int | None = None) -> Rule:
        """Act on the next `times` matching requests, or on all of them until removed."""
        if len(self._rules) >= RULES_MAX:
            raise ValueError(f"more than {RULES_MAX} fault rules")
        rule = Rule(next(self._numbers), match, fault, times)
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Stop a rule; a rule that is spent is already gone."""
        self._rules = [r for r in self._rules if r is not rule]

    def clear(self) -> None:
        """Behave."""
        self._rules.clear()

    def take(self, request: Request) -> Fault | None:
        """The fault for a request, counting it against its rule."""
        for rule in self._rules:
            if rule.match.matches(request):
                rule.hits += 1
                if rule.times is not None and rule.hits >= rule.times:
                    self.remove(rule)
                return rule.fault
        return None
