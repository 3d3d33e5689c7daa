"""Attacks on the history of an Incident, shared by the tests on both API servers."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

AT = "2026-01-01T00:00:00Z"
DRAIN: Json = {"id": "1-Drain", "rung": "Drain", "startedAt": AT, "because": ["why"]}
DONE: Json = DRAIN | {"outcome": {"at": AT, "result": "Succeeded"}}


def incident(name: str) -> Json:
    """An incident that nothing has happened to yet."""
    return {
        "apiVersion": "outlast.dev/v1alpha1",
        "kind": "Incident",
        "metadata": {"name": name},
        "spec": {"nodeName": "n1", "nodeUID": "u1", "openedAt": AT},
    }


BEGUN: Json = {"epoch": 3, "phase": "Draining", "attempts": [DRAIN]}
ATTACKS: dict[str, tuple[Json, Json]] = {
    # name: (status that stands, status that must be refused)
    "the history is removed whole": (BEGUN, {"status": None}),
    "an attempt vanishes": (BEGUN, {"status": {"attempts": []}}),
    "the list vanishes": (BEGUN, {"status": {"attempts": None}}),
    "more vanish than are counted": (
        BEGUN | {"attempts": [DRAIN, DRAIN | {"id": "2-Drain"}]},
        {"status": {"attempts": [], "attemptsDropped": 1}},
    ),
    "an intent changes its rung": (BEGUN, {"status": {"attempts": [DRAIN | {"rung": "Reboot"}]}}),
    "an intent changes its time": (
        BEGUN,
        {"status": {"attempts": [DRAIN | {"startedAt": "2026-01-01T00:00:01Z"}]}},
    ),
    "an intent gains a boot id": (BEGUN, {"status": {"attempts": [DRAIN | {"bootID": "b"}]}}),
    "an intent loses its reasons": (
        BEGUN,
        {"status": {"attempts": [{k: v for k, v in DRAIN.items() if k != "because"}]}},
    ),
    "an outcome is rewritten": (
        BEGUN | {"attempts": [DONE]},
        {"status": {"attempts": [DRAIN | {"outcome": {"at": AT, "result": "Failed"}}]}},
    ),
    "an outcome is withdrawn": (BEGUN | {"attempts": [DONE]}, {"status": {"attempts": [DRAIN]}}),
    "the epoch falls": (BEGUN, {"status": {"epoch": 2}}),
    "the epoch is removed": (BEGUN, {"status": {"epoch": None}}),
    "a closed incident is opened": (
        BEGUN | {"phase": "Closed", "end": {"at": AT, "result": "Returned"}},
        {"status": {"phase": "Blocked"}},
    ),
    "the end is rewritten": (
        BEGUN | {"phase": "Closed", "end": {"at": AT, "result": "Returned"}},
        {"status": {"end": {"result": "Replaced"}}},
    ),
    "two attempts share an id": (BEGUN, {"status": {"attempts": [DRAIN, DRAIN]}}),
}
SPEC_ATTACKS: dict[str, Json] = {
    "the node is another": {"spec": {"nodeName": "n2"}},
    "the opening moves": {"spec": {"openedAt": "2026-02-01T00:00:00Z"}},
    "a fault is added": {"spec": {"observeOnly": True}},
}
ALLOWED: dict[str, tuple[Json, Json]] = {
    "an outcome is written": (BEGUN, {"status": {"attempts": [DONE]}}),
    "an intent is added": (BEGUN, {"status": {"epoch": 4, "attempts": [DRAIN, DRAIN | {"id": "4-Drain"}]}}),
    "an old attempt is counted instead": (
        BEGUN | {"attempts": [DONE]},
        {"status": {"attempts": [DRAIN | {"id": "9-Drain"}], "attemptsDropped": 1, "epoch": 9}},
    ),
    "an incident is closed": (
        BEGUN,
        {"status": {"phase": "Closed", "end": {"at": AT, "result": "Returned"}}},
    ),
    "nothing is known yet": ({}, {"status": {"phase": "Waiting"}}),
    "an intent without its optional fields gets an outcome": (
        {"attempts": [{"id": "1-Reboot", "rung": "Reboot", "startedAt": AT}]},
        {
            "status": {
                "attempts": [
                    {
                        "id": "1-Reboot",
                        "rung": "Reboot",
                        "startedAt": AT,
                        "outcome": {"at": AT, "result": "Failed"},
                    }
                ]
            }
        },
    ),
}
