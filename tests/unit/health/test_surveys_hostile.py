"""Whatever bus, network, processes and host show, the judge answers and garbage drains nobody."""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.model.observation import HostSurvey, PciSurvey, ProcessSurvey, RdmaSurvey, Survey
from outlast.model.observation.dcgm import DcgmExporterSurvey, DcgmSurvey
from tests.unit.health.sites import MACHINES, Site

WORDS = st.one_of(
    st.sampled_from(
        ["", "efa", "nvidia", "nouveau", "vfio-pci", "ACTIVE", "DOWN", "dead", "live", "0000:10:1b.0"]
    ),
    st.text(max_size=40),
)
NUMBERS = st.one_of(
    st.integers(0, 9), st.sampled_from([-(2**63), -1, 0x10DE, 0x1D0F, 2**32 - 1, 2**63, 2**64 - 1])
)
REALS = st.one_of(
    st.floats(0, 1000), st.sampled_from([0.0, -1.0, 1e300, float("inf"), float("-inf"), float("nan")])
)


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated type, extremes included."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*(anything(one) for one in inside))
    if origin is tuple:
        if inside[-1] is Ellipsis:
            return st.lists(anything(inside[0]), max_size=4).map(tuple)
        return st.tuples(*(anything(one) for one in inside))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return st.dictionaries(anything(inside[0]), anything(inside[1]), max_size=3)
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        return NUMBERS
    if kind is float:
        return REALS
    if kind is str:
        return WORDS
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    assert isinstance(kind, type) and issubclass(kind, msgspec.Struct), kind
    return st.deferred(
        lambda: st.builds(
            kind, **{field.name: anything(field.type) for field in msgspec.structs.fields(kind)}
        )
    )


def site() -> Site:
    """A fresh machine; made once, its state is never changed in place."""
    return MACHINES["H200 with InfiniBand"]()


SURVEYS = st.one_of(
    *(
        anything(kind)
        for kind in (PciSurvey, RdmaSurvey, ProcessSurvey, HostSurvey, DcgmSurvey, DcgmExporterSurvey)
    )
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(SURVEYS, min_size=1, max_size=12))
def test_any_survey_is_judged(surveys: list[Survey]) -> None:
    """No rule fails, whatever comes, and the machine is judged well again by what it really shows."""
    there = START.copy()
    for survey in surveys:
        there.time_s += 15
        there.tell(survey)
        assert not [key for key in there.state.notes if key.startswith("broken ")]
    there.live(120)
    assert there.answer.status.verdicts


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(SURVEYS)
def test_one_survey_of_garbage_drains_nobody(survey: Survey) -> None:
    """A single look is never enough for a fault that would end jobs."""
    there = START.copy()
    for _ in range(8):
        there.time_s += 0.1
        there.tell(survey)
    there.time_s += 15
    assert there.disruptive == set()


START = site()
