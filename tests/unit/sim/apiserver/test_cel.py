"""CEL: what rules evaluate to, what is an error, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.sim.apiserver.cel import CelSyntaxError, Program
from outlast.sim.apiserver.cel_values import CelError

OBJECT: dict[str, Any] = {
    "n": 3,
    "s": "abc",
    "l": [1, 2, 3],
    "m": {"k": "v"},
    "o": [{"id": "a"}],
    "t": True,
    "f": 1.5,
}

HOLDS = [
    "self.n == 3",
    "self.n >= 3 && self.n < 4",
    "self.n != 4 || self.missing",
    "!(self.n > 3)",
    "self.n + 2 * 3 == 9",
    "-self.n == -3",
    "self.n % 2 == 1",
    "7 / 2 == 3",
    "-7 / 2 == -3",
    "'a' + 'b' == \"ab\"",
    "has(self.n) && !has(self.missing)",
    "has(self.m.k)",
    "size(self.l) == 3 && self.s.size() == 3",
    "self.l.all(x, x > 0)",
    "self.l.exists(x, x == 2)",
    "self.l.exists_one(x, x == 2)",
    "self.l.filter(x, x > 1) == [2, 3]",
    "self.l.map(x, x * 2) == [2, 4, 6]",
    "self.m.all(k, self.m[k] == 'v')",
    "2 in self.l && 'k' in self.m",
    "self.o[0].id == 'a'",
    "self.?missing.orValue(7) == 7",
    "self.?m.?k.orValue('') == 'v'",
    "self.?m.missing.hasValue() == false",
    "self.l[?9].orValue(0) == 0",
    "(self.t ? 'yes' : 'no') == 'yes'",
    "self.s.startsWith('a') && self.s.endsWith('c') && self.s.contains('b')",
    "self.s.matches('^[a-z]+$')",
    "string(self.n) == '3' && int('3') == self.n",
    "self.f > 1 && self.f < 2",
    "{'a': 1}.a == 1",
    "self.m == {'k': 'v'}",
    "1 != true",
    "r'\\d' == '\\\\d'",
]


@pytest.mark.parametrize("rule", HOLDS)
def test_the_rule_holds(rule: str) -> None:
    """Operators, macros, optionals and functions mean what CEL says."""
    assert Program(rule, ["self"]).evaluate({"self": OBJECT}) is True


FAILS = [
    ("self.missing", "no such key: missing"),
    ("self.l[9]", "index out of bounds"),
    ("self.s > 3", "no such overload"),
    ("1 / 0 == 1", "division by zero"),
    ("self.n && true", "no such overload"),
    ("self.missing || false", "no such key"),
    ("self.l.all(x, x.y)", "no such overload"),
]


@pytest.mark.parametrize(("rule", "why"), FAILS)
def test_the_rule_is_an_error(rule: str, why: str) -> None:
    """A missing key or a wrong type is a CelError that says which."""
    with pytest.raises(CelError, match=why):
        Program(rule, ["self"]).evaluate({"self": OBJECT})


@pytest.mark.parametrize(
    "rule", ["", "self.", "self.n >", "(self.n", "nobody.n", "self.fancy()", "self.n ==== 1", "§"]
)
def test_a_rule_that_is_not_understood_is_refused(rule: str) -> None:
    """At compile time, so that no rule is silently not enforced."""
    with pytest.raises(CelSyntaxError):
        Program(rule, ["self"])


def test_either_side_of_a_logical_operator_may_decide() -> None:
    """An error on one side does not matter when the other side settles it."""
    assert Program("self.missing || true", ["self"]).evaluate({"self": {}}) is True
    assert Program("self.missing && false", ["self"]).evaluate({"self": {}}) is False


def test_a_rule_knows_what_it_refers_to() -> None:
    """Rules that mention oldSelf are transition rules."""
    assert Program("self == oldSelf", ["self", "oldSelf"]).uses == {"self", "oldSelf"}


def test_an_expensive_rule_is_an_error_and_not_a_stall() -> None:
    """Evaluation has a budget."""
    rule = Program("self.all(a, self.all(b, self.all(c, a + b + c >= 0)))", ["self"])
    with pytest.raises(CelError, match="too expensive"):
        rule.evaluate({"self": list(range(200))})


def test_a_deep_rule_is_refused() -> None:
    """Nesting has a limit."""
    with pytest.raises(CelSyntaxError, match="nested deeper"):
        Program("(" * 100 + "true" + ")" * 100, [])
