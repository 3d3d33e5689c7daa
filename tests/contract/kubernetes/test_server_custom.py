"""Custom kinds: schema, defaults, pruning, CEL rules, status, printer columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.kubernetes.conftest import Server, until
from tests.controlplane.access import JSON_PATCH, MERGE, STRATEGIC, Answer

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PART = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string", "maxLength": 10}, "rung": {"type": "string", "maxLength": 10}},
    "x-kubernetes-validations": [
        {
            "rule": "!has(oldSelf.rung) || (has(self.rung) && self.rung == oldSelf.rung)",
            "message": "rung stays",
        }
    ],
}
SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1},
        "color": {"type": "string", "enum": ["red", "blue", "dark"], "default": "red"},
        "name": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
        "tags": {
            "type": "array", "maxItems": 2, "items": {"type": "string"}, "x-kubernetes-list-type": "set",
        },
        "parts": {
            "type": "array", "maxItems": 4, "items": PART, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
        },
        "when": {"type": "string", "format": "date-time"},
        "every": {"type": "string", "format": "duration"},
        "amount": {"x-kubernetes-int-or-string": True},
        "share": {"type": "number", "maximum": 1},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "x-kubernetes-validations": [
        {"rule": "self.size >= oldSelf.size", "message": "size never falls"},
        {
            "rule": "!has(self.name) || self.name != 'zz'",
            "fieldPath": ".name",
            "reason": "FieldValueForbidden",
        },
        {"rule": "self.color != 'dark'"},
    ],
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": SPEC,
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
    "x-kubernetes-validations": [
        {"rule": "!has(oldSelf.status) || has(self.status)", "message": "status stays"}
    ],
}


def definition(group: str) -> dict[str, Any]:
    """A CustomResourceDefinition of Widgets in a group of the test."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": SCHEMA},
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Last", "type": "string", "jsonPath": ".spec.parts[-1:].rung"},
            {
                "name": "Reboot",
                "type": "string",
                "jsonPath": '.spec.parts[?(@.rung=="Reboot")].id',
                "priority": 1,
            },
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    names = {"kind": "Widget", "plural": "widgets", "shortNames": ["wd"]}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"widgets.{group}"}, "spec": spec}


class Widgets:
    """The collection in one namespace."""

    def __init__(self, server: Server, group: str, space: str) -> None:
        self.server = server
        self.group = group
        self.path = f"/apis/{group}/v1/namespaces/{space}/widgets"

    def body(self, name: str, /, **spec: Any) -> dict[str, Any]:
        """A Widget."""
        return {"apiVersion": f"{self.group}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}

    def create(self, name: str, /, **spec: Any) -> Answer:
        """Ask for one."""
        answer: Answer = self.server.ask("POST", self.path, self.body(name, **spec))
        return answer

    def merge(self, path: str, body: Any) -> Answer:
        """Ask for a merge patch."""
        answer: Answer = self.server.ask("PATCH", f"{self.path}/{path}", body, content_type=MERGE)
        return answer


@pytest.fixture
def widgets(server: Server, space: str) -> Iterator[Widgets]:
    """A kind of this test's own."""
    group = f"{space}.dev"
    server.ok("POST", DEFINITIONS, definition(group))
    path = f"{DEFINITIONS}/widgets.{group}"

    def established() -> bool:
        conditions = (server.ok("GET", path).get("status") or {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    until("the kind is established", established)
    found = Widgets(server, group, space)
    until("the kind is served", lambda: server.ask("GET", found.path).ok)
    yield found
    server.ask("DELETE", path)


def causes(answer: Answer) -> set[tuple[str, str]]:
    """Field and reason of each cause."""
    assert (answer.status, answer.reason) == (422, "Invalid")
    return {(c["field"], c["reason"]) for c in answer.body["details"]["causes"]}


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({}, "spec.size", "FieldValueRequired"),
    ({"size": "3"}, "spec.size", "FieldValueTypeInvalid"),
    ({"size": 0}, "spec.size", "FieldValueInvalid"),
    ({"size": 1, "color": "green"}, "spec.color", "FieldValueNotSupported"),
    ({"size": 1, "name": "a"}, "spec.name", "FieldValueInvalid"),
    ({"size": 1, "name": "abcdef"}, "spec.name", "FieldValueTooLong"),
    ({"size": 1, "name": "A1"}, "spec.name", "FieldValueInvalid"),
    ({"size": 1, "tags": ["a", "b", "c"]}, "spec.tags", "FieldValueTooMany"),
    ({"size": 1, "tags": ["a", "a"]}, "spec.tags[1]", "FieldValueDuplicate"),
    ({"size": 1, "parts": [{"id": "a"}, {"id": "a"}]}, "spec.parts[1]", "FieldValueDuplicate"),
    ({"size": 1, "parts": [{"rung": "x"}]}, "spec.parts[0].id", "FieldValueRequired"),
    ({"size": 1, "when": "2024-01-01T00:00:00"}, "spec.when", "FieldValueTypeInvalid"),
    ({"size": 1, "every": "often"}, "spec.every", "FieldValueTypeInvalid"),
    ({"size": 1, "amount": True}, "spec.amount", "FieldValueTypeInvalid"),
    ({"size": 1, "share": 1.5}, "spec.share", "FieldValueInvalid"),
    ({"size": 1, "labels": {"a": 1}}, "spec.labels.a", "FieldValueTypeInvalid"),
    ({"size": 1, "name": "zz"}, "spec.name", "FieldValueForbidden"),
    ({"size": 1, "color": "dark"}, "spec", "FieldValueInvalid"),
]


def test_what_breaks_the_schema_is_refused_by_field_and_rule(widgets: Widgets) -> None:
    """422; a cause with field and reason for each kind of rule, CEL among them."""
    for number, (spec, field, reason) in enumerate(BROKEN):
        assert (field, reason) in causes(widgets.create(f"w{number}", **spec)), spec


def test_a_broken_rule_tells_its_message(widgets: Widgets) -> None:
    """The rule's message, or the rule itself."""
    assert "failed rule: self.color != 'dark'" in widgets.create("a", size=1, color="dark").message
    assert widgets.create("a", size=2).ok
    assert "size never falls" in widgets.merge("a", {"spec": {"size": 1}}).message


def test_rules_wait_until_the_structure_holds(widgets: Widgets) -> None:
    """With a type error no rule runs, and the answer says so."""
    answer = widgets.create("a", size="3", color="dark")
    assert "some validation rules were not checked" in answer.message
    assert "failed rule" not in answer.message


def test_good_values_are_taken(widgets: Widgets) -> None:
    """Both forms of a duration, int-or-string, free fields, maps."""
    spec = {
        "size": 1, "every": "5m", "amount": "10%", "when": "2024-01-01T00:00:00Z",
        "free": {"any": {"thing": 1}}, "labels": {"a": "b"}, "tags": ["a", "b"],
    }  # fmt: skip
    made = widgets.create("a", **spec)
    assert made.ok, made.message
    assert made.body["spec"] == {**spec, "color": "red"}
    assert widgets.create("b", size=1, every="PT5M").ok


def test_unknown_fields_are_dropped_with_a_warning(widgets: Widgets) -> None:
    """Warn is the default; Strict refuses with 400; Ignore is silent."""
    body = widgets.body("a", size=1, wat=1)
    warned = widgets.server.ask("POST", widgets.path, body)
    assert warned.warnings == ('299 - "unknown field \\"spec.wat\\""',)
    assert "wat" not in warned.body["spec"]
    silent = widgets.server.ask(
        "POST", f"{widgets.path}?fieldValidation=Ignore", widgets.body("b", size=1, wat=1)
    )
    assert (silent.status, silent.warnings) == (201, ())
    strict = widgets.server.ask(
        "POST", f"{widgets.path}?fieldValidation=Strict", widgets.body("c", size=1, wat=1)
    )
    assert (strict.status, strict.reason) == (400, "BadRequest")
    assert 'unknown field "spec.wat"' in strict.message


def test_a_custom_object_needs_its_kind(widgets: Widgets) -> None:
    """400 where kind or apiVersion is left out."""
    answer = widgets.server.ask("POST", widgets.path, {"metadata": {"name": "a"}, "spec": {"size": 1}})
    assert (answer.status, answer.reason) == (400, "BadRequest")


def test_create_drops_status(widgets: Widgets) -> None:
    """Status comes through its subresource only."""
    made = widgets.server.ok("POST", widgets.path, {**widgets.body("a", size=1), "status": {"phase": "x"}})
    assert "status" not in made


def test_status_and_the_rest_cannot_touch_each_other(widgets: Widgets) -> None:
    """A status write changes neither spec nor labels; a main write does not change status."""
    widgets.create("a", size=1)
    both = {"spec": {"size": 9}, "metadata": {"labels": {"l": "x"}}, "status": {"phase": "p"}}
    after = widgets.merge("a/status", both).body
    assert (after["spec"]["size"], after["status"], "labels" in after["metadata"]) == (
        1,
        {"phase": "p"},
        False,
    )
    after = widgets.merge("a", {"status": {"phase": "q"}, "metadata": {"labels": {"l": "y"}}}).body
    assert (after["status"], after["metadata"]["labels"]) == ({"phase": "p"}, {"l": "y"})


def test_generation_of_a_custom_object_ignores_status_and_labels(widgets: Widgets) -> None:
    """Only spec moves it."""
    widgets.create("a", size=1)
    changes = [("a/status", {"status": {"phase": "p"}}), ("a", {"metadata": {"labels": {"l": "1"}}})]
    changes += [("a", {"spec": {"size": 2}})]
    generations = [widgets.merge(path, body).body["metadata"]["generation"] for path, body in changes]
    assert generations == [1, 1, 2]


def test_a_uid_in_a_status_patch_is_ignored(widgets: Widgets) -> None:
    """On the main resource it is a precondition, on /status only resourceVersion is."""
    widgets.create("a", size=1)
    assert widgets.merge("a", {"metadata": {"uid": "other"}}).status == 422
    assert widgets.merge("a/status", {"metadata": {"uid": "other"}, "status": {"phase": "p"}}).ok
    stale = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "q"}}
    assert widgets.merge("a/status", stale).status == 409


def test_a_root_rule_guards_against_losing_status(widgets: Widgets) -> None:
    """`status: null` meets the rule at the root."""
    widgets.create("a", size=1)
    widgets.merge("a/status", {"status": {"phase": "p"}})
    assert "status stays" in widgets.merge("a/status", {"status": None}).message


def test_items_of_a_keyed_list_are_compared_with_themselves(widgets: Widgets) -> None:
    """A transition rule of an item looks at the item of the same key, wherever it stands."""
    widgets.create("a", size=1, parts=[{"id": "x", "rung": "1"}])
    moved = [{"id": "new", "rung": "2"}, {"id": "x", "rung": "1"}]
    assert widgets.merge("a", {"spec": {"parts": moved}}).ok
    changed = [{"id": "new", "rung": "3"}, {"id": "x", "rung": "1"}]
    assert ("spec.parts[0]", "FieldValueInvalid") in causes(widgets.merge("a", {"spec": {"parts": changed}}))


def test_strategic_merge_is_not_for_custom_kinds(widgets: Widgets) -> None:
    """415."""
    widgets.create("a", size=1)
    answer = widgets.server.ask("PATCH", f"{widgets.path}/a", {}, content_type=STRATEGIC)
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


def test_a_json_patch_needs_the_map_it_adds_to(widgets: Widgets) -> None:
    """A fresh custom object has no annotations map: 422."""
    widgets.create("a", size=1)
    operation = {"op": "add", "path": "/metadata/annotations/k", "value": "v"}
    assert (
        widgets.server.ask("PATCH", f"{widgets.path}/a", [operation], content_type=JSON_PATCH).status == 422
    )


def test_selectable_fields_select(widgets: Widgets) -> None:
    """A declared field selects, another is 400."""
    widgets.create("a", size=1)
    widgets.create("b", size=1, color="blue")
    body = widgets.server.ok("GET", f"{widgets.path}?fieldSelector={quote('spec.color=blue')}")
    assert [i["metadata"]["name"] for i in body["items"]] == ["b"]
    assert widgets.server.ask("GET", f"{widgets.path}?fieldSelector={quote('spec.size=1')}").status == 400


def test_a_replace_of_a_custom_object_needs_its_version(widgets: Widgets) -> None:
    """422 on metadata.resourceVersion."""
    widgets.create("a", size=1)
    answer = widgets.server.ask("PUT", f"{widgets.path}/a", widgets.body("a", size=2))
    assert ("metadata.resourceVersion", "FieldValueInvalid") in causes(answer)


def test_a_definition_that_names_itself_wrongly_is_refused(server: Server, unique: str) -> None:
    """The name must be plural.group."""
    body = definition(f"{unique}.dev")
    body["metadata"]["name"] = f"gadgets.{unique}.dev"
    assert ("metadata.name", "FieldValueInvalid") in causes(server.ask("POST", DEFINITIONS, body))


def test_a_rule_that_does_not_compile_is_refused(server: Server, unique: str) -> None:
    """422 at the definition, not at the first object."""
    body = definition(f"{unique}.dev")
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {
        **schema,
        "x-kubernetes-validations": [{"rule": "self.spec.size >"}],
    }
    assert server.ask("POST", DEFINITIONS, body).status == 422


def test_a_kind_goes_with_its_definition(widgets: Widgets) -> None:
    """After the definition is deleted the path is not served."""
    widgets.create("a", size=1)
    widgets.server.ok("DELETE", f"{DEFINITIONS}/widgets.{widgets.group}")
    until("the kind is gone", lambda: widgets.server.ask("GET", widgets.path).status == 404)


def test_kubectl_shows_our_columns(widgets: Widgets) -> None:
    """Table rows with the printer columns, wide ones too."""
    widgets.create("a", size=3, parts=[{"id": "p", "rung": "Drain"}, {"id": "q", "rung": "Reboot"}])
    space = widgets.path.split("/")[5]
    head, row = widgets.server.kubectl(
        "-n", space, "get", f"widgets.{widgets.group}", "-o", "wide"
    ).stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "LAST", "REBOOT", "AGE"]
    assert row.split()[:4] == ["a", "3", "Reboot", "q"]
