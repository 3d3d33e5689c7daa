"""The checked-in definitions are the generated ones, and the generator refuses what servers refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from outlast.schema.__main__ import files
from outlast.schema.crds import definitions
from outlast.schema.openapi import Hints, Unsupported, structural_schema

CHECKED_IN = Path(__file__).parents[3] / "deploy" / "crds"


def test_checked_in_definitions_equal_the_generated() -> None:
    """Whoever changes the model runs `python -m outlast.schema`."""
    assert {p.name: p.read_text() for p in CHECKED_IN.glob("*.outlast.dev.yaml")} == files()


def _schemas(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    children = [(f"{path}.{name}", part) for name, part in schema.get("properties", {}).items()]
    if "items" in schema:
        children.append((f"{path}[]", schema["items"]))
    return [(path, schema), *(found for p, c in children for found in _schemas(c, p))]


@pytest.mark.parametrize("definition", definitions(), ids=lambda d: d["metadata"]["name"])
def test_every_list_is_bounded_and_every_field_described(definition: dict[str, Any]) -> None:
    """A list without a limit can fill an object until etcd refuses it; a field without words is a riddle."""
    root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, schema in _schemas(root):
        assert "type" in schema, path
        if schema["type"] == "array":
            assert "maxItems" in schema, path
        if path.startswith((".spec", ".status")) and not path.endswith("[]"):
            assert schema.get("description"), path


def test_rules_guard_every_optional_field() -> None:
    """A rule that reads an absent field fails, and then the object can never be written again."""
    for definition in definitions():
        root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for path, schema in _schemas(root):
            for rule in schema.get("x-kubernetes-validations", ()):
                optional = set(schema["properties"]) - set(schema.get("required", ()))
                for name in optional:
                    if f"self.{name} " in rule["rule"] or f"self.{name}." in rule["rule"]:
                        assert f"has(self.{name})" in rule["rule"], (path, rule["rule"])


class _Two(msgspec.Struct):
    both: Annotated[int | str, Meta(description="refused")]


class _Silent(msgspec.Struct):
    nameless: int


@pytest.mark.parametrize("shape", [_Two, _Silent])
def test_what_has_no_structural_schema_is_refused_by_name(shape: type) -> None:
    """A generator that guesses produces schemas that servers silently cut."""
    with pytest.raises(Unsupported, match=r"both|nameless"):
        structural_schema(shape, Hints())
