"""What `outlast replay` prints: summary first, then faults with their evidence, timeline, and the rest."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from outlast.cli import UserError
from outlast.health.finding import Role
from outlast.health.replay.story import Entry, FaultStory, Report, Tally, Where
from outlast.model.health import FaultClass
from outlast.model.plain_text import plain
from outlast.model.policy import Mode, RemediationPolicy, RemediationPolicySpec
from outlast.remediation.decide.ladder import executable, ladder_for, policy_problems, remarks

POLICY_BYTES_MAX: Final = 1024 * 1024
TIMELINE_SHOWN_MAX: Final = 200
TALLIES_SHOWN_MAX: Final = 40
WIDTH_MAX: Final = 120
WIDTH_PIPED: Final = 100

NOT_JUDGED: Final = (
    "A log tells what happened, not what is so: GPUs and network devices were not counted, and memory, "
    "links, temperatures and the recovery that the driver wants were not read. So nothing here is called "
    "healthy, and a fault ends only where silence alone ends it."
)
_ROLES: Final = {
    Role.APPLICATION: "application error",
    Role.FOLLOWER: "echo without a cause",
    Role.INFORMATIONAL: "for information",
    Role.MODIFIER: "addition",
    Role.LEADER: "error",
    Role.UNEXPECTED: "unknown code",
}
_RUNGS: Final = {
    "BlockNewWork": "block new work",
    "RequestCheckpoint": "ask jobs for a checkpoint",
    "Drain": "drain",
    "EndJob": "end the job",
    "ResetGPU": "reset the GPU",
    "Reboot": "reboot",
    "Replace": "replace the machine",
    "Hold": "hold for a human",
}


def read_policy(path: Path | None) -> RemediationPolicySpec:
    """The policy in a file, or the defaults. Raises UserError with what is wrong and where."""
    if path is None:
        return RemediationPolicySpec()
    import yaml

    try:
        text = path.read_bytes()[:POLICY_BYTES_MAX]
        documents = [d for d in yaml.safe_load_all(text) if isinstance(d, dict)]
    except OSError as error:
        raise UserError(f"the policy {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"the policy {path} is no YAML: {' '.join(str(error).split())[:200]}.") from error
    found = [d for d in documents if d.get("kind") == "RemediationPolicy"]
    if len(found) != 1:
        raise UserError(f"{path} holds {len(found)} objects of kind RemediationPolicy; it should hold one.")
    try:
        spec = msgspec.convert(found[0], RemediationPolicy).spec
    except msgspec.ValidationError as error:
        raise UserError(f"the policy {path}: {error}.") from error
    if problems := policy_problems(spec):
        raise UserError(f"the policy {path}: {problems[0]}.")
    return spec


def only(report: Report, gpu: str) -> Report:
    """The same report about one GPU."""
    return msgspec.structs.replace(
        report,
        faults=[fault for fault in report.faults if fault.gpu == gpu],
        timeline=[e for e in report.timeline if e.gpu == gpu or e.kind in ("boot", "driver", "condition")],
        tallies=[tally for tally in report.tallies if tally.key.partition("/")[0] == gpu],
    )


def unread(report: Report) -> bool:
    """Whether something of the logs could not be read, so that silence in them says less."""
    return any(file.size_bytes and file.note for file in report.files)


def as_json(report: Report, policy: RemediationPolicySpec) -> str:
    """One document with a version; fields as in docs/replay.md."""
    document = msgspec.to_builtins(report)
    for fault, story in zip(document["faults"], report.faults, strict=True):
        path = ladder_for(FaultClass(story.fault_class), policy)
        fault["policy"] = {"mode": policy.mode, "ladder": list(path), "steps": list(executable(path))}
    for tally in document["tallies"]:
        for internal in ("pid_set", "last_number", "burst_line", "burst_us", "burst_boot"):
            tally.pop(internal, None)
    document["notJudged"] = NOT_JUDGED
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def as_text(report: Report, policy: RemediationPolicySpec) -> str:
    """For a person at a terminal."""
    lines = [*_summary(report), *_faults(report, policy), *_timeline(report), *_rest(report)]
    lines += ["", "Not judged", *_wrapped(NOT_JUDGED, "  ")]
    return "\n".join(lines)


def _summary(report: Report) -> Iterator[str]:
    faults = report.faults
    if not faults and not any(file.is_log for file in report.files):
        yield "Nothing could be read as a log."
    elif not faults:
        missing = unread(report)
        yield f"No fault of the machine{' in what could be read' if missing else ''}."
    else:
        what = f"{len(faults)} fault{_s(faults)}"
        classes = [c for c in reversed(FaultClass) if any(f.fault_class == c for f in faults)]
        counts = ", ".join(f"{sum(f.fault_class == c for f in faults)} {c}" for c in classes)
        gpus = {(f.host, f.gpu) for f in faults if f.gpu}
        yield f"{what} ({counts}) on {len(gpus)} GPU{_s(gpus)}." if gpus else f"{what} ({counts})."
    for file in report.files:
        size = f"{file.size_bytes / 1e6:,.1f} MB" if file.size_bytes >= 1e5 else f"{file.size_bytes:,} bytes"
        yield f"  {plain(file.name)}: {file.lines:,} line{'' if file.lines == 1 else 's'}, {size}" + (
            f"; {plain(file.note)}" if file.note else ""
        )
        if 0 < file.not_text < file.lines:
            yield f"    {file.not_text:,} of its lines hold bytes that are no text."
    if report.hosts:
        shown = ", ".join(plain(host) for host in report.hosts[:8])
        more = f" and {len(report.hosts) - 8} more" if len(report.hosts) > 8 else ""
        yield f"  machine{_s(report.hosts)}: {shown}{more}"
    if report.boots > max(1, len(report.hosts)):
        yield f"  boots: {report.boots}"
    if report.undated and (report.faults or report.tallies):
        yield "  The log has no times, so what belongs together is decided by order alone."
    if report.repeated:
        yield f"  {report.repeated:,} lines come a second time and were judged once."
    if report.before:
        yield f"  {report.before:,} lines before --since were left out."
    if report.since_unused and report.tallies:
        yield "  The log has no dates, so --since left nothing out."
    for what, count in report.left_out.items():
        yield f"  {count:,} more {what} than are kept; they are not shown."


def _faults(report: Report, policy: RemediationPolicySpec) -> Iterator[str]:
    for fault in report.faults:
        yield ""
        about = f"GPU {fault.gpu}" if fault.gpu else fault.device or "the whole node"
        host = f"{plain(fault.host)}: " if fault.host and len(report.hosts) > 1 else ""
        boot = f", boot {fault.boot}" if report.boots > 1 else ""
        yield f"Fault {fault.number}  {host}{plain(about)}  {fault.fault_class}{boot}  [{_at(fault.where)}]"
        yield from _wrapped(plain(fault.summary), "  ")
        yield f"  {plain(fault.evidence)[: WIDTH_MAX - 2]}"
        if len(fault.codes) > 1:
            yield "  codes:"
            for code in fault.codes:
                line = _at(code.where) + ("  root" if code.code == fault.root else "")
                yield f"    {plain(code.at):<24} {code.code:<16} {code.fault_class:<13} {line}"
        yield f"  {fault.lines:,} line{'' if fault.lines == 1 else 's'} of it in all"
        over = fault.ended or f"when {fault.clears_by}"
        yield from _wrapped(f"over: {plain(over)}", "  ")
        yield from _wrapped(f"policy: {_policy(fault, policy)}", "  ")


def _policy(fault: FaultStory, policy: RemediationPolicySpec) -> str:
    path = ladder_for(FaultClass(fault.fault_class), policy)
    steps = [_RUNGS.get(rung, str(rung)) for rung in executable(path)]
    words = " > ".join(steps) if steps else "nothing is done to the node"
    if notes := remarks(path):
        words += f" ({'; '.join(notes)})"
    if policy.mode is Mode.OBSERVE and steps:
        words += ". The mode is Observe, so it would be explained and not done"
    return f"{words}."


def _timeline(report: Report) -> Iterator[str]:
    if not report.timeline:
        return
    yield from ("", "Timeline")
    for entry in report.timeline[:TIMELINE_SHOWN_MAX]:
        yield _entry(entry, with_host=len(report.hosts) > 1)
    more = len(report.timeline) - TIMELINE_SHOWN_MAX
    if more > 0:
        yield f"  ... and {more:,} more; --json has them."


def _entry(entry: Entry, *, with_host: bool) -> str:
    host = f"{plain(entry.host)}: " if entry.host and with_host else ""
    where = f"  [{_at(entry.where)}]" if entry.where else ""
    return f"  {plain(entry.at):<24} {host}{plain(entry.text)}{where}"


def _rest(report: Report) -> Iterator[str]:
    unknown = [t for t in report.tallies if t.role == Role.UNEXPECTED]
    other = [t for t in report.tallies if t.role != Role.UNEXPECTED and not t.in_fault]
    if unknown:
        yield from ("", "Codes that no catalogue explains (the GPU would be Unknown: no new work, no drain)")
        yield from _tallies(unknown, report)
    if other:
        yield from ("", "Also in the log (nothing is done to the node)")
        yield from _tallies(other, report)
    if report.not_from_kernel:
        one = report.not_from_kernel == 1
        yield ""
        yield (
            f"Not from the kernel: {report.not_from_kernel:,} line{' looks' if one else 's look'} like the "
            "driver's, but a program wrote it"
        )
        yield from (f"  {plain(text)[: WIDTH_MAX - 2]}" for text in report.not_from_kernel_examples)


def _tallies(tallies: list[Tally], report: Report) -> Iterator[str]:
    for tally in tallies[:TALLIES_SHOWN_MAX]:
        host = f"{plain(tally.host)}: " if tally.host and len(report.hosts) > 1 else ""
        pids = f", {tally.pids} process{'es' if tally.pids > 1 else ''}" if tally.pids else ""
        count = f"{tally.count:,} line{'' if tally.count == 1 else 's'}{pids}"
        lines = _at(tally.first) + (f" ... {_at(tally.last)}" if tally.count > 1 else "")
        role = _ROLES.get(Role(tally.role), tally.role)
        yield f"  {host}{plain(tally.key):<16} {tally.code:<14} {role:<18} {count}  [{lines}]"
    if len(tallies) > TALLIES_SHOWN_MAX:
        yield f"  ... and {len(tallies) - TALLIES_SHOWN_MAX} more; --json has them."


def _at(where: Where) -> str:
    return f"{plain(where.file)}:{where.line}"


def _s(things: object) -> str:
    return "" if isinstance(things, list | set | tuple) and len(things) == 1 else "s"


def _wrapped(text: str, indent: str) -> Iterable[str]:
    columns = shutil.get_terminal_size((WIDTH_PIPED, 24)).columns
    return textwrap.wrap(
        text, min(max(columns, 40), WIDTH_MAX), initial_indent=indent, subsequent_indent=indent + "  "
    )
