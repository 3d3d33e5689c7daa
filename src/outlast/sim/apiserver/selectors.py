"""Label and field selectors, parsed as Kubernetes parses them and compiled to a test of an entry.

A field selector only knows the fields that its kind declares; anything else is refused, so that a
misspelt selector never silently selects everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.sim.apiserver.errors import bad_request
from outlast.sim.apiserver.storage import Entry

_TOKEN = re.compile(r"\s*(==|!=|=|!|,|\(|\)|>|<|[^\s=!,()<>]+)")
_OPERATORS = frozenset({"==", "!=", "=", "!", "(", ")", ">", "<"})
_NAME = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_DNS = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_PREFIX_RULE = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
    r"validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_KEY_RULE = (
    "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
    "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
LABEL_NAME_MAX = 63
LABEL_PREFIX_MAX = 253


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term: key, operator, values."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy the term."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
            case _:
                return value is not None and _compare(value, self.operator, next(iter(self.values)))


def _compare(value: str, operator: str, bound: str) -> bool:
    try:
        left, right = int(value), int(bound)
    except ValueError:
        return False
    return left > right if operator == "gt" else left < right


def label_key_problem(key: str) -> str:
    """What is wrong with a label key, or ""."""
    prefix, slash, name = key.partition("/")
    if "/" in name:
        return _KEY_RULE
    if not slash:
        prefix, name = "", prefix
    if slash and (not _DNS.match(prefix) or len(prefix) > LABEL_PREFIX_MAX):
        return _PREFIX_RULE
    if not name:
        return "name part must be non-empty"
    if len(name) > LABEL_NAME_MAX:
        return f"name part must be no more than {LABEL_NAME_MAX} bytes"
    if not _NAME.match(name):
        return _NAME_RULE
    return ""


def label_value_problem(value: str) -> str:
    """What is wrong with a label value, or ""."""
    if len(value) > LABEL_NAME_MAX:
        return f"must be no more than {LABEL_NAME_MAX} bytes"
    if not _VALUE.match(value):
        return _VALUE_RULE
    return ""


class _LabelParser:
    """Recursive descent over `a=b,c in (d,e),!f,g`."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        if "".join(self.tokens) != re.sub(r"\s+", "", text):
            raise ValueError(f"unable to parse requirement: {text}")
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def requirements(self) -> list[Requirement]:
        found = []
        while self.peek():
            found.append(self.requirement())
            if self.peek():
                separator = self.take()
                if separator != ",":
                    raise ValueError(f"found '{separator}', expected: ',' or 'end of string'")
                if not self.peek():
                    raise ValueError("found '', expected: identifier after ','")
        return found

    def requirement(self) -> Requirement:
        if self.peek() == "!":
            self.take()
            return Requirement(self.key(), "!")
        key = self.key()
        operator = self.peek()
        if operator in ("", ","):
            return Requirement(key, "exists")
        self.take()
        match operator:
            case "=" | "==":
                return Requirement(key, "in", frozenset([self.value()]))
            case "!=":
                return Requirement(key, "notin", frozenset([self.value()]))
            case ">" | "<":
                bound = self.value()
                if not re.match(r"^-?\d+$", bound):
                    raise ValueError("for 'Gt', 'Lt' operators, the value must be an integer")
                return Requirement(key, "gt" if operator == ">" else "lt", frozenset([bound]))
            case "in" | "notin":
                return Requirement(key, operator, self.value_set())
        raise ValueError(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def key(self) -> str:
        key = self.take()
        if problem := label_key_problem(key):
            raise ValueError(f'<nil>: Invalid value: "{key}": {problem}')
        return key

    def value(self) -> str:
        if self.peek() in ("", ","):
            return ""
        value = self.take()
        if value in _OPERATORS:
            raise ValueError(f"found '{value}', expected: identifier")
        if problem := label_value_problem(value):
            raise ValueError(f'values[0][{value}]: Invalid value: "{value}": {problem}')
        return value

    def value_set(self) -> frozenset[str]:
        opening = self.take()
        if opening != "(":
            raise ValueError(f"found '{opening}' expected: '('")
        values = set()
        while True:
            values.add(self.value())
            closing = self.take()
            if closing == ")":
                return frozenset(values)
            if closing != ",":
                raise ValueError(f"found '{closing}', expected: ',' or ')'")


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Terms of a label selector; all must hold. Refused with 400 where it cannot be read."""
    try:
        return tuple(_LabelParser(text).requirements())
    except ValueError as error:
        raise bad_request(f"unable to parse requirement: {error}") from error


_EXPRESSION = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!", "Gt": "gt", "Lt": "lt"}


def from_object(selector: Mapping[str, Any] | None) -> tuple[Requirement, ...] | None:
    """Terms of a LabelSelector object; None (no selector) selects nothing, an empty one everything."""
    if selector is None:
        return None
    terms = [Requirement(k, "in", frozenset([v])) for k, v in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        operator = _EXPRESSION.get(expression.get("operator", ""), "in")
        values = frozenset(expression.get("values") or ())
        terms.append(Requirement(expression.get("key", ""), operator, values))
    return tuple(terms)


def all_match(terms: Iterable[Requirement] | None, labels: Mapping[str, str]) -> bool:
    """Whether all terms hold; None selects nothing."""
    return terms is not None and all(term.matches(labels) for term in terms)


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """`field = value` or `field != value`."""

    field: str
    equal: bool
    value: str


def _split_unescaped(text: str) -> list[str]:
    return [part for part in re.split(r"(?<!\\),", text) if part]


def parse_fields(text: str, known: Iterable[str]) -> tuple[FieldTerm, ...]:
    """Terms of a field selector. Refused with 400 for a field that the kind does not offer."""
    allowed = {"metadata.name", "metadata.namespace", *known}
    terms = []
    for part in _split_unescaped(text):
        match = re.match(r"^(.*?)(==|!=|=)(.*)$", part)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        name, operator, value = match.group(1).strip(), match.group(2), match.group(3)
        if name not in allowed:
            raise bad_request(f"field label not supported: {name}")
        terms.append(FieldTerm(name, operator != "!=", re.sub(r"\\([\\,=])", r"\1", value)))
    return tuple(terms)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list, watch or deletecollection is about."""

    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[FieldTerm, ...] = ()

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not (self.namespace or self.labels or self.fields)

    def exact(self) -> dict[str, str]:
        """Fields with one required value."""
        return {term.field: term.value for term in self.fields if term.equal}

    def selects(self, entry: Entry) -> bool:
        """Whether the entry belongs to the selection."""
        if self.namespace and entry.namespace != self.namespace:
            return False
        for field in self.fields:
            if (entry.fields.get(field.field, "") == field.value) is not field.equal:
                return False
        return not self.labels or all_match(self.labels, entry.labels)

    def predicate(self) -> Callable[[Entry], bool]:
        """The test as a function; cheaper than `selects` where nothing is selected."""
        return (lambda _: True) if self.everything else self.selects


def extract_fields(obj: Mapping[str, Any], known: Iterable[str]) -> dict[str, str]:
    """The values of selectable fields as selectors compare them: text, absent is empty or false."""
    meta = obj.get("metadata") or {}
    found = {"metadata.name": meta.get("name", ""), "metadata.namespace": meta.get("namespace", "")}
    for path in known:
        value: Any = obj
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if path in ("spec.unschedulable", "spec.hostNetwork"):
            value = bool(value)
        elif path == "source" and isinstance(value, dict):
            value = value.get("component", "")
        elif path == "status.successful":
            value = (obj.get("status") or {}).get("succeeded", 0)
        if isinstance(value, bool):
            found[path] = "true" if value else "false"
        else:
            found[path] = "" if value is None else str(value)
    return found
