"""How often the judge is right about an incident, and how often it would end jobs for nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tests.acceptance.incidents import Outcome, incidents, lived_through

from benchmarks.report import Row, Section

VARIATIONS = 10


def run() -> Section:
    """Every incident as written and in nine variations."""
    outcomes = [lived_through(one, seed) for one in incidents() for seed in range(VARIATIONS)]
    benign = [one for one in outcomes if not one.incident.disruptive]
    wrongly = [one for one in benign if one.disruptive]
    acted = [one for one in outcomes if one.disruptive]
    needed = [one for one in outcomes if one.incident.disruptive]
    right = [one for one in needed if one.right]
    rows = [
        Row(
            "benign incidents for which jobs would have ended",
            f"{len(wrongly)} of {len(benign)}",
            "0",
            not wrongly,
            _named(wrongly),
        ),
        Row("precision: of those acted on, the right cure for the right GPU", _share(len(right), len(acted))),
        Row("recall: of those that need a cure, the right one", _share(len(right), len(needed))),
        Row(
            "all incidents judged right, blocks and harmless ones too",
            _share(sum(one.right for one in outcomes), len(outcomes)),
            note=_named([one for one in outcomes if not one.right]),
        ),
    ]
    for kind in sorted({one.incident.kind for one in outcomes}):
        these = [one for one in outcomes if one.incident.kind == kind]
        rows.append(Row(f"{kind}: judged right", f"{sum(one.right for one in these)} of {len(these)}"))
    return Section(
        "precision",
        "Is the verdict right?",
        f"{len(incidents())} incidents (tests/data/incidents: real lines of drivers and kernels, and what "
        f"the levels show beside them), each as written and in {VARIATIONS - 1} variations: other GPUs, "
        "another order of lines that came together, repeated lines, lines of others in between. Scored per "
        "incident: the strongest verdict while it lasted against the cure it needs, on that GPU. "
        "The expectations are ours, and so are the variations; none of it ran on a sick GPU.",
        tuple(rows),
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "nothing to count"


def _named(outcomes: Iterable[Outcome]) -> str:
    return ", ".join(sorted({f"{one.incident.kind}/{one.incident.id}" for one in outcomes}))
