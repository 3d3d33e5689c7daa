"""Health reports of DCGM: words cut in pieces, exit codes that say nothing, text where JSON was asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.sources.dcgm_health import INCIDENTS_MAX, health_report, recognised
from outlast.health.sources.dcgm_output import document, major, plain, signed_exit, told_problem, versions
from outlast.model.observation.dcgm import DcgmProblem
from tests.dcgm import recorded


def report(entities: dict[str, object], overall: str = "Failure", group: str = "GPU") -> bytes:
    body = {group: {"children": entities}, "Overall Health": {"value": overall}}
    return json.dumps({"body": body, "header": ["Health Monitor Report"]}).encode()


def entity(system: str, pieces: object, value: str = "Failure") -> dict[str, object]:
    errors = {"children": {system: {"value": value, "overflow": pieces}}}
    return {"value": value, "children": {"Errors": errors}}


def test_a_healthy_report_is_healthy() -> None:
    """As recorded: nothing but the overall word."""
    survey = health_report(recorded("health-healthy.json"), 0)

    assert (survey.overall, survey.incidents, survey.problem) == ("Healthy", (), None)


def test_a_failure_is_read_although_the_program_ended_with_0() -> None:
    """The exit code of a report says nothing about it; pieces of text are one sentence again."""
    survey = health_report(recorded("health-failure.json"), 0)

    assert survey.overall == "Failure"
    assert survey.problem is None
    found = {(i.entity_group, i.entity_id, i.system): i for i in survey.incidents}
    memory = found["GPU", 2, "Memory system"]
    assert memory.text.startswith("GPU 2 had uncorrectable memory errors and row remapping failed.")
    assert (memory.health, memory.code, memory.xid) == ("Failure", 80, None)
    xid = found["GPU", 4, "Memory system"]
    assert (xid.health, xid.code, xid.xid) == ("Warning", 101, 31)
    assert found["GPU", 4, "NVLINK system"].code == 14
    assert found["GPU", 10, "Power system"].code == 12
    assert found["Switch", 0, "NVLINK system"].code == 15


@pytest.mark.parametrize(
    ("name", "exit_code", "problem"),
    [
        ("health-watches-off.txt", 253, DcgmProblem.WATCHES_OFF),
        ("engine-down.txt", 235, DcgmProblem.ENGINE_DOWN),
        ("health-no-group.txt", 253, DcgmProblem.FAILED),
        ("health-internal-error.json", 0, DcgmProblem.FAILED),
    ],
)
def test_what_is_said_instead_of_a_report_is_a_problem(
    name: str, exit_code: int, problem: DcgmProblem
) -> None:
    """Never Healthy, never a fault, and the words are kept for people."""
    survey = health_report(recorded(name), exit_code)

    assert survey.problem is problem
    assert survey.overall == ""
    assert survey.message


@pytest.mark.parametrize("output", [b"", b"{}", b"[]", b"null", b"\xff\xfe{", b'{"body": 3}', b"{" * 100_000])
def test_nothing_readable_is_a_problem(output: bytes) -> None:
    """Also with exit code 0."""
    survey = health_report(output, 0)

    assert survey.problem is not None
    assert survey.overall == ""


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"Overall Health": {"value": "Failure"}}, ("", None)),
        ({"Overall Health": {"value": "Failure"}, "GPUs": ["a list"]}, ("", None)),
        (
            {"Overall Health": {"value": "Failure"}, "GPU": {"children": {"5": {"value": "Failure"}}}},
            ("GPU", 5),
        ),
    ],
)
def test_a_failure_without_a_readable_incident_is_one_incident(
    body: dict[str, object], where: tuple[str, int | None]
) -> None:
    """A later shape must not read as health."""
    survey = health_report(json.dumps({"body": body}).encode(), 0)

    assert [((i.entity_group, i.entity_id), i.health, i.code) for i in survey.incidents] == [
        (where, "Failure", None)
    ]


def test_text_before_and_after_the_document_is_stepped_over() -> None:
    """Libraries print warnings to the same place, some with braces."""
    around = b"WARNING {not json} \n" + recorded("health-healthy.json") + b"\nbye }"

    assert health_report(around, 0).overall == "Healthy"


def test_a_report_of_anything_is_bounded() -> None:
    """A report with thousands of incidents keeps the first, and counts the rest."""
    many = report({str(i): entity("PCIe system", ["x" * 5000]) for i in range(1000)})

    survey = health_report(many, 0)

    assert len(survey.incidents) == INCIDENTS_MAX
    assert survey.incidents_dropped == 1000 - INCIDENTS_MAX
    assert all(len(incident.text) <= 400 for incident in survey.incidents)


@pytest.mark.parametrize(
    ("text", "code", "xid"),
    [
        ("Detected XID 79 for GPU 0", 101, 79),
        ("GPU 3 has fallen off the bus", 120, None),
        ("GPU had an uncontained error (XID 95)", 81, 95),
        ("GPU had a contained error.", 131, None),
        ("GPU 1 exceeded uncorrectable row remap limit with 512 remapped rows", 132, None),
        ("GPU 1 requires a reset to recover from a fault. Recovery action: 1 (GPU_RESET).", 125, None),
        ("Detected 2 volatile double-bit ECC error(s) in GPU 0.", 4, None),
        ("More than 10 single-bit ECC error(s) detected in GPU 0 Volatile SBEs: 44", 5, None),
        ("Detected more than 8 PCIe replays per minute for GPU 0 : 12", 3, None),
        ("A sentence of a later version", None, None),
    ],
)
def test_sentences_are_recognised_by_their_fixed_parts(text: str, code: int | None, xid: int | None) -> None:
    """The report has no codes; a sentence that is not known has none either."""
    assert recognised(text) == (code, xid)


def test_a_sentence_is_recognised_where_the_cut_took_a_mark() -> None:
    """`dcgmi` drops the full stop, comma or slash at which it cuts."""
    pieces = ["GPU 2 had uncorrectable memory errors and row", "remapping failed Run a field", "diagnostic"]

    survey = health_report(report({"2": entity("Memory system", pieces)}), 0)

    assert survey.incidents[0].code == 80


@given(st.binary(max_size=400), st.integers(0, 255) | st.none())
def test_any_bytes_give_an_answer(output: bytes, exit_code: int | None) -> None:
    """No output of a tool raises, and only a whole report has an opinion."""
    survey = health_report(output, exit_code)

    assert bool(survey.overall) is (survey.problem is None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["body", "children", "Errors", "value", "overflow", "Overall Health", "GPU", "0"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@given(_JSON)
def test_any_json_gives_an_answer(value: object) -> None:
    """Shapes of other versions are no error of ours."""
    survey = health_report(json.dumps({"body": value}).encode(), 0)

    assert bool(survey.overall) is (survey.problem is None)


@pytest.mark.parametrize(("code", "signed"), [(0, 0), (226, -30), (205, -51), (235, -21), (3, 3), (-9, None)])
def test_exit_codes_are_signed_bytes(code: int, signed: int | None) -> None:
    """DCGM returns its own negative codes; death by a signal is none of them."""
    assert signed_exit(code) == signed


@pytest.mark.parametrize(
    ("text", "exit_code", "problem"),
    [
        ("", 217, DcgmProblem.ALREADY_RUNNING),
        ("", 203, DcgmProblem.KILLED),
        ("", 199, DcgmProblem.DRIVER_TIMEOUT),
        ("Error: Diagnostic could not be run while DCGM is paused.", 202, DcgmProblem.PAUSED),
        ("something else", 253, DcgmProblem.FAILED),
        ("something else", 0, DcgmProblem.GARBAGE),
        ("something else", None, DcgmProblem.GARBAGE),
    ],
)
def test_an_end_without_a_report_is_told_by_words_then_by_code(
    text: str, exit_code: int | None, problem: DcgmProblem
) -> None:
    """Words are surer, because health reports all trouble with one code."""
    assert told_problem(text.encode(), exit_code)[0] is problem


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (recorded("version-4.txt"), ("4.6.0", "4.6.0")),
        (recorded("version-4-engine-3.txt"), ("4.6.0", "3.3.9")),
        (recorded("version-no-engine.txt"), ("3.3.9", "")),
        (b"\ndcgmi  version: 4.7.0\n\n", ("4.7.0", "")),
        (b"", ("", "")),
        (b"\xff\x00 no", ("", "")),
    ],
)
def test_versions_of_the_tool_and_the_engine(output: bytes, expected: tuple[str, str]) -> None:
    """Both ways in which the program tells its version; without an engine there is only one."""
    assert versions(output) == expected


def test_the_major_version_decides() -> None:
    """And what is no version has none."""
    assert (major("4.6.0"), major("3.3.9"), major(""), major("x.1")) == (4, 3, None, None)


def test_documents_need_a_wanted_key() -> None:
    """An object that is something else is not taken for the report."""
    assert document(b'{"a": 1} {"body": {}}', "body") == {"body": {}}
    assert document(b'{"a": 1}', "body") is None


def test_words_of_a_tool_are_one_printable_bounded_line() -> None:
    """They end in messages that people read."""
    assert plain(b"Error:\n\x1b[31mred\x00 " + b"x" * 10_000).startswith("Error: [31mred xxx")
    assert len(plain(b"x" * 10_000)) == 400


def test_words_that_would_move_a_terminal_are_taken_out() -> None:
    """What a tool says ends in conditions, logs and terminals."""
    hostile = "\x1b[2Jgone\u202e\r\n\x00"

    survey = health_report(report({"0": entity(hostile, [hostile], hostile)}, group=hostile), 0)

    (found,) = survey.incidents
    for text in (found.entity_group, found.system, found.health, found.text):
        assert text == "[2Jgone"
