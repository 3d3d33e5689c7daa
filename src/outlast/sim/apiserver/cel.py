"""CEL as validation rules use it: parsed once into closures, evaluated on plain JSON values.

The part of the language that rules of custom kinds need: operators, `has`, optionals, `size`, the list
macros and the common string functions. What is not supported is refused when a rule is compiled,
never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outlast.sim.apiserver.cel_values import (
    FUNCTIONS,
    MACROS,
    METHODS,
    CelError,
    Node,
    Optional,
    Scope,
    arithmetic,
    boolean,
    compare,
    contained,
    either,
    element,
    field,
    macro,
    maybe,
    method,
    same,
)

RULE_CHARS_MAX = 8192
DEPTH_MAX = 64
"""Nesting of one expression."""
STEPS_MAX = 200_000
"""Evaluated nodes of one rule on one value; a rule that needs more is an error, not a stall."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[uU]?)
    | (?P<string>r?"(?:[^"\\]|\\.)*"|r?'(?:[^'\\]|\\.)*')
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<op>\|\||&&|==|!=|<=|>=|\[\?|\.\?|[-+*/%<>!?:.,()\[\]{}])
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`"}


class CelSyntaxError(ValueError):
    """A rule that cannot be compiled."""


class _Budget:
    """Counts evaluated nodes through a scope entry shared by nested scopes."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = STEPS_MAX


def _counted(node: Node) -> Node:
    def run(scope: Scope) -> Any:
        budget: _Budget = scope["#"]
        budget.left -= 1
        if budget.left < 0:
            raise CelError("the rule is too expensive for this value")
        return node(scope)

    return run


class _Parser:
    """Recursive descent from the ternary down to primaries."""

    _LEVELS: Sequence[tuple[str, ...]] = (
        ("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"),
    )  # fmt: skip

    def __init__(self, text: str, names: Iterable[str]) -> None:
        if len(text) > RULE_CHARS_MAX:
            raise CelSyntaxError(f"longer than {RULE_CHARS_MAX} characters")
        self.tokens = _tokens(text)
        self.at = 0
        self.names = set(names)
        self.used: set[str] = set()
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise CelSyntaxError(f"expected {wanted or 'more'!r}, found {token or 'the end'!r}")
        self.at += 1
        return token

    def skip(self, wanted: str) -> bool:
        if self.peek() == wanted and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise CelSyntaxError(f"nested deeper than {DEPTH_MAX}")
        test = self.binary(0)
        if self.skip("?"):
            yes = self.expression()
            self.take(":")
            no = self.expression()
            condition = test
            test = lambda s: yes(s) if boolean(condition(s)) else no(s)  # noqa: E731
        self.depth -= 1
        return _counted(test)

    def binary(self, level: int) -> Node:
        if level == len(self._LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while (
            self.at < len(self.tokens)
            and self.tokens[self.at][0] != "string"
            and self.peek() in self._LEVELS[level]
        ):
            left = _operation(self.take(), left, self.binary(level + 1))
        return left

    def unary(self) -> Node:
        if self.skip("!"):
            inner = self.unary()
            return lambda s: not boolean(inner(s))
        if self.skip("-"):
            negated = self.unary()
            return lambda s: arithmetic("-", 0, negated(s))
        return self.postfix(self.primary())

    def postfix(self, node: Node) -> Node:
        while True:
            if self.skip("."):
                node = self.member(node, self.take())
            elif self.skip(".?"):
                node = _optional_field(node, self.take())
            elif self.skip("[?"):
                node = _optional_element(node, self.closed("]"))
            elif self.skip("["):
                node = _indexed(node, self.closed("]"))
            else:
                return node

    def closed(self, closing: str) -> Node:
        inner = self.expression()
        self.take(closing)
        return inner

    def member(self, target: Node, name: str) -> Node:
        if not self.skip("("):
            return lambda s: _reached(target(s), name)
        if name in MACROS:
            return self.macro(target, name)
        if name not in METHODS:
            raise CelSyntaxError(f"function {name} is not supported")
        arguments = self.arguments(")")
        return lambda s: method(name, target(s), [a(s) for a in arguments])

    def macro(self, target: Node, name: str) -> Node:
        variable = self.take()
        known = variable in self.names
        self.names.add(variable)
        self.take(",")
        body, transform = self.expression(), None
        if name == "map" and self.skip(","):
            transform = self.expression()
        self.take(")")
        if not known:
            self.names.discard(variable)
        return macro(name, target, variable, body, transform)

    def arguments(self, closing: str) -> list[Node]:
        found: list[Node] = []
        while not self.skip(closing):
            if found:
                self.take(",")
            found.append(self.expression())
        return found

    def primary(self) -> Node:
        if self.at >= len(self.tokens):
            raise CelSyntaxError("the rule ends too early")
        kind, word = self.tokens[self.at]
        self.at += 1
        if kind == "string":
            return lambda _: word
        if kind == "number":
            number = float(word) if "." in word else int(word.rstrip("uU"))
            return lambda _: number
        if word == "(":
            return self.closed(")")
        if word == "[":
            items = self.arguments("]")
            return lambda s: [item(s) for item in items]
        if word == "{":
            return self.mapping()
        if kind == "name":
            return self.named(word)
        raise CelSyntaxError(f"unexpected {word!r}")

    def mapping(self) -> Node:
        pairs: list[tuple[Node, Node]] = []
        while not self.skip("}"):
            if pairs:
                self.take(",")
            key = self.expression()
            self.take(":")
            pairs.append((key, self.expression()))
        return lambda s: {k(s): v(s) for k, v in pairs}

    def named(self, name: str) -> Node:
        constants = {"true": True, "false": False, "null": None}
        if name in constants:
            value = constants[name]
            return lambda _: value
        if name == "has" and self.skip("("):
            return self.presence()
        if name in FUNCTIONS and self.skip("("):
            function, argument = FUNCTIONS[name], self.closed(")")
            return lambda s: function(argument(s))
        if name not in self.names:
            raise CelSyntaxError(f"undeclared reference to {name!r}")
        self.used.add(name)
        return lambda s: s[name]

    def presence(self) -> Node:
        """`has(a.b.c)`: whether the last field is there; those before it must be."""
        target = self.primary()
        steps: list[str] = []
        while self.skip("."):
            steps.append(self.take())
        self.take(")")
        if not steps:
            raise CelSyntaxError("has() takes a field selection")

        def run(scope: Scope) -> bool:
            value = target(scope)
            for step in steps[:-1]:
                value = field(value, step)
            if not isinstance(value, dict):
                raise CelError("no such overload: has")
            return steps[-1] in value

        return run


def _reached(value: Any, name: str) -> Any:
    """A field; of an optional, again an optional."""
    return maybe(value, lambda v: field(v, name)) if isinstance(value, Optional) else field(value, name)


def _optional_field(node: Node, name: str) -> Node:
    return lambda s: maybe(node(s), lambda v: field(v, name))


def _optional_element(node: Node, index: Node) -> Node:
    return lambda s: maybe(node(s), lambda v: element(v, index(s)))


def _indexed(node: Node, index: Node) -> Node:
    return lambda s: element(node(s), index(s))


def _operation(operator: str, left: Node, right: Node) -> Node:
    match operator:
        case "||":
            return either(left, right, stop=True)
        case "&&":
            return either(left, right, stop=False)
        case "==":
            return lambda s: same(left(s), right(s))
        case "!=":
            return lambda s: not same(left(s), right(s))
        case "in":
            return lambda s: contained(left(s), right(s))
        case "+" | "-" | "*" | "/" | "%":
            return lambda s: arithmetic(operator, left(s), right(s))
    return lambda s: compare(operator, left(s), right(s))


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise CelSyntaxError(f"not understood: {text[at : at + 20]!r}")
        text_of = match[match.lastgroup]
        found.append((match.lastgroup, _unquoted(text_of) if match.lastgroup == "string" else text_of))
        at = match.end()
    return found


def _unquoted(token: str) -> str:
    if token.startswith("r"):
        return token[2:-1]
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), token[1:-1])


class Program:
    """A compiled expression; `uses` are the names it refers to."""

    def __init__(self, text: str, names: Iterable[str]) -> None:
        """Raises CelSyntaxError."""
        parser = _Parser(text, names)
        self._node = parser.expression()
        if parser.peek():
            raise CelSyntaxError(f"unexpected {parser.peek()!r}")
        self.uses = frozenset(parser.used)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The result. Raises CelError."""
        try:
            return self._node({**values, "#": _Budget()})
        except (RecursionError, re.error, OverflowError) as error:
            raise CelError(str(error)) from error
