"""How often the judge is right about an incident, and how often it would end jobs for nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tests.acceptance import wild
from tests.acceptance.incidents import DISRUPTIVE_FROM, STRENGTH, Outcome, incidents, lived_through

from benchmarks.report import Row, Section

VARIATIONS = 10
FIRST_RUN = 191
FIRST_WRONG = 14
FIRST_DISRUPTIVE = 12
LAST_RUN = 11


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
    rows += _published()
    return Section(
        "precision",
        "Is the verdict right?",
        f"{len(incidents())} incidents (tests/data/incidents: real lines of drivers and kernels, and what "
        f"the levels show beside them), each as written and in {VARIATIONS - 1} variations: other GPUs, "
        "another order of lines that came together, repeated lines, lines of others in between. Scored per "
        "incident: the strongest verdict while it lasted against the cure it needs, on that GPU. "
        "The expectations are ours, and so are the variations; none of it ran on a sick GPU. "
        "Published logs (tests/data/wild) are lines and sequences of public trackers, forums and test data, "
        "labelled before they were run: live on a machine that is healthy by every other sign, and from a "
        f"file. At the first run {FIRST_WRONG} of {FIRST_RUN} were judged wrong, and {FIRST_DISRUPTIVE} of "
        "those were none for which jobs should end: detached volumes, a stick pulled out, display cards. "
        "That is the honest rate for lines never seen; "
        f"the last {LAST_RUN} that were added needed no change.",
        tuple(rows),
    )


def _published() -> list[Row]:
    """The blocks of tests/data/wild, on both ways."""
    blocks = wild.blocks()
    harmless = [one for one in blocks if STRENGTH[one.cure.rstrip("?")] < DISRUPTIVE_FROM]
    rows = []
    for way, run in (("live", wild.lived_through), ("from a file", wild.replayed)):
        verdicts = {one.id: run(one) for one in blocks}
        ended = [one.id for one in harmless if STRENGTH[verdicts[one.id][0].cure] >= DISRUPTIVE_FROM]
        wrong = [one.id for one in blocks if not verdicts[one.id][0].fits(one, verdicts[one.id][1])]
        rows += [
            Row(
                f"published logs {way}: harmless ones for which jobs would have ended",
                f"{len(ended)} of {len(harmless)}",
                "0",
                not ended,
                ", ".join(ended),
            ),
            Row(
                f"published logs {way}: judged right",
                _share(len(blocks) - len(wrong), len(blocks)),
                note=", ".join(wrong),
            ),
        ]
    return rows


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "nothing to count"


def _named(outcomes: Iterable[Outcome]) -> str:
    return ", ".join(sorted({f"{one.incident.kind}/{one.incident.id}" for one in outcomes}))
