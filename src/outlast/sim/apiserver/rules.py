"""`x-kubernetes-validations`: CEL rules of a schema, and the causes that a broken rule gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.sim.apiserver.cel import CelSyntaxError, Program
from outlast.sim.apiserver.cel_values import NONE, CelError, Optional
from outlast.sim.apiserver.errors import Cause

_LABELS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule on one schema node."""

    text: str
    program: Program
    type: str
    message: str = ""
    explain: Program | None = None
    reason: str = "FieldValueInvalid"
    field: str = ""
    optional_old: bool = False

    @property
    def transition(self) -> bool:
        """Compares with the value before, and so runs on updates only."""
        return "oldSelf" in self.program.uses

    def check(self, value: Any, old: Any, path: str, *, updated: bool) -> Cause | None:
        """The cause when the rule does not hold. `updated` tells an absent old value from a create."""
        names: dict[str, Any] = {"self": value}
        if self.transition:
            if self.optional_old:
                names["oldSelf"] = Optional(old) if updated else NONE
            elif not updated:
                return None
            else:
                names["oldSelf"] = old
        try:
            held = self.program.evaluate(names)
        except CelError as error:
            why = f"rule evaluation error: {error} ({self.text})"
            shown = f'"{self.type}": ' if isinstance(value, dict | list) else f"{_shown(value)} "
            return Cause("FieldValueInvalid", f"Invalid value: {shown}{why}", self._where(path))
        if held is True:
            return None
        return self._cause(value, path, self._why(names))

    def _why(self, names: Mapping[str, Any]) -> str:
        if self.explain is not None:
            try:
                text = self.explain.evaluate(names)
            except CelError:
                text = ""
            if isinstance(text, str) and text.strip():
                return text
        return self.message or f"failed rule: {self.text}"

    def _cause(self, value: Any, path: str, why: str) -> Cause:
        label = _LABELS[self.reason]
        shown = "" if label in ("Forbidden", "Required value") else _shown(value)
        return Cause(self.reason, f"{label}: {shown}{': ' if shown else ''}{why}", self._where(path))

    def _where(self, path: str) -> str:
        return (path + self.field).lstrip(".") or "<nil>"


def _shown(value: Any) -> str:
    """Objects and lists are not shown."""
    if isinstance(value, dict | list):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def compile_rules(raw: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of a schema node. ValueError where one cannot be used."""
    return tuple(_compile(rule, raw.get("type", "")) for rule in raw.get("x-kubernetes-validations") or ())


def _compile(raw: Mapping[str, Any], type_: str) -> Rule:
    names = ("self", "oldSelf")
    text = raw.get("rule", "")
    try:
        explain = Program(raw["messageExpression"], names) if raw.get("messageExpression") else None
        program = Program(text, names)
    except CelSyntaxError as error:
        raise ValueError(f"rule {text!r}: compilation failed: {error}") from error
    reason = raw.get("reason", "FieldValueInvalid")
    if reason not in _LABELS:
        raise ValueError(f"rule {text!r}: reason {reason!r} is not supported")
    return Rule(
        text, program, type_, raw.get("message", ""), explain, reason, raw.get("fieldPath", ""),
        bool(raw.get("optionalOldSelf")),
    )  # fmt: skip
