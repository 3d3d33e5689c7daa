"""Kernel records to facts: literals first, regular expressions only behind them and in a bounded window.

Only facility 0 is the kernel's own voice; everything else can be written by any root process of a
container and is counted, never believed. Any text is accepted and none makes this fail.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from outlast.health.sources import xid
from outlast.health.sources.facts import (
    ADDRESS,
    FACT_TEXT_MAX,
    DriverUnloadedFact,
    Fact,
    HungTaskFact,
    LineFact,
    SxidFact,
    normalise,
    pci_address,
)
from outlast.health.sources.lines import (
    Line,
    Rule,
    driver,
    memory,
    network,
    pcie,
    quoted,
    storage,
    tasks,
    window,
)
from outlast.health.sources.lines.driver import LineMemory
from outlast.model.observation import KERNEL_FACILITY, KERNEL_LINE_BYTES_MAX, KernelRecord

STACK_RECORDS_MAX: Final = 64
STACK_SPAN_US: Final = 5_000_000
"""The kernel prints the stack of a stuck task right behind its name."""
RECOVERY_RECORDS_MAX: Final = 64
REMOVABLE_MAX: Final = 16
RECOVERY_SPAN_US: Final = 60_000_000
"""Linux waits up to a minute for a reset device before it gives it up."""

_DRIVER: Final = "NVRM"
_SWITCH: Final = "SXid ("
_STACK: Final = "[nvidia"
_UNLOADED: Final = "Nvlink Core"
_OOM: Final = "oom-kill:"
_PROBES: Final = ("nvidia: probe of ", "probe with driver nvidia ")
_SXID: Final = re.compile(
    rf"\bSXid \({ADDRESS}\): (\d{{1,6}})(?!\d)(?:, (Non-fatal|Fatal)\b)?(?:.{{0,64}}?\bLink (\d{{1,3}})\b)?"
)
_SWITCH_DRIVER: Final = re.compile(r"nvidia-nvswitch\d{1,3}: $")
_FRAME: Final = re.compile(r"\+0x[0-9a-f]{1,6}/0x[0-9a-f]{1,6} \[nvidia(?:_uvm|_modeset|_drm|_peermem)?\b")
_LEFT: Final = re.compile(r"nvidia-nvlink: Unregistered (?:the )?Nvlink Core")
_TOOLS: Final = re.compile(r"outlast-nvml|nvidia[\w-]*|nv-hostengine|dcgm[\w-]*|nvsm[\w-]*|nv-fabricmana\w*")

RULES: Final[tuple[Rule, ...]] = (
    *pcie.RULES,
    *memory.RULES,
    *network.RULES,
    *storage.RULES,
    *tasks.RULES,
)

LITERALS: Final = tuple(
    literal.encode()
    for literal in (
        _DRIVER,
        _SWITCH,
        _STACK,
        _UNLOADED,
        *_PROBES,
        *dict.fromkeys(rule.literal for rule in RULES),
    )
)
"""Bytes of which at least one is in every line that can say anything: for a search by chunks of a file."""

_FRAMES: Final = ("[nvidia]", "[nvidia_uvm]", "[nvidia_modeset]", "[nvidia_drm]", "[nvidia_peermem]")
_ALWAYS: Final = tuple(number for number, rule in enumerate(RULES) if rule.literal == _OOM)
_BY_WORD: Final[dict[str, tuple[int, ...]]] = {
    word: tuple(number for number, rule in enumerate(RULES) if word in rule.words)
    for word in frozenset().union(*(rule.words for rule in RULES))
}
_WORDS: Final = frozenset((*_BY_WORD, *_FRAMES, "Nvlink", "probe"))
_no_word_in: Final = _WORDS.isdisjoint


def interesting(record: KernelRecord) -> bool:
    """Whether the record can say anything to us; cheap enough for every line of a flood.

    One pass over the words of a line costs a quarter of a search for each literal, and no more when
    there are more of them. The driver's own name is found wherever it stands.
    """
    text = record.text
    return not _no_word_in(text.split()) or _DRIVER in text or _SWITCH in text or _OOM in text


def trusted(record: KernelRecord, *, trust_user_records: bool = False) -> bool:
    """Whether the kernel itself wrote it."""
    return trust_user_records or record.facility == KERNEL_FACILITY


def read(record: KernelRecord, memory: LineMemory) -> tuple[Fact | None, LineMemory]:
    """The fact in one record, and what to remember for the next one. Never raises.

    Give it the records of one log in order, with what the call before returned, `LineMemory()` at first.
    Records that are not `interesting` may be left out.
    """
    text = record.text
    if len(text) > KERNEL_LINE_BYTES_MAX:
        text = text[:KERNEL_LINE_BYTES_MAX]
        record = msgspec.structs.replace(record, text=text)
    said = text.find("NVRM:")
    switch = text.find(_SWITCH)
    if switch >= 0 and (said < 0 or switch < said):
        return _sxid(record, switch), memory
    if said >= 0:
        if quoted(text, said):
            return None, memory
        code = text.find("Xid (", said)
        if code > 0 and text[code - 1] != "S":
            return xid.parse(record, code), memory
        return driver.read(record, text[said : said + driver.TEXT_MAX], memory)
    for rule in _candidates(text):
        if rule.literal in text:
            piece, begin = window(text, rule.literal)
            line = rule.read(piece)
            if line is not None:
                return _fact(record, line, begin + line.start, memory)
    return _driver_module(record, text, memory)


def _candidates(text: str) -> list[Rule]:
    """The rules of the words in a line, in the order of the table."""
    numbers: list[int] = []
    for word in _WORDS.intersection(text.split()):
        numbers += _BY_WORD.get(word, ())
    if _OOM in text:
        numbers += _ALWAYS
    return [RULES[number] for number in sorted(set(numbers))]


def _fact(record: KernelRecord, line: Line, start: int, memory: LineMemory) -> tuple[Fact | None, LineMemory]:
    if quoted(record.text, start):
        return None, memory
    text = record.text[start : start + FACT_TEXT_MAX].rstrip()
    kind = line.kind
    if kind in (storage.REMOVABLE, storage.FIXED):
        return None, _attached(line, memory)
    if line.device in memory.removable:
        kind = storage.when_removable(kind)
    if kind == "task/hung":
        if _TOOLS.fullmatch(line.subject):
            return _hung(record, line.subject, text), memory
        memory = msgspec.structs.replace(
            memory, task=line.subject, task_records_left=STACK_RECORDS_MAX, at_us=record.timestamp_us
        )
    elif kind == "pcie/fatal":
        memory = msgspec.structs.replace(
            memory,
            port=line.device or line.gpu,
            port_records_left=RECOVERY_RECORDS_MAX,
            at_us=record.timestamp_us,
        )
    elif memory.port and kind.startswith("pcie/"):
        kind, memory = _after_fatal(record, line, memory)
    fact = LineFact(
        sequence=record.sequence,
        timestamp_us=record.timestamp_us,
        text=text,
        kind=kind,
        device=line.device,
        gpu=line.gpu,
        rdma=line.rdma,
        subject=line.subject,
        occurrences=line.occurrences,
    )
    return fact, memory


def _attached(line: Line, memory: LineMemory) -> LineMemory:
    """The kernel gives a name again to whatever comes next."""
    removable = tuple(disk for disk in memory.removable if disk != line.device)
    if line.kind == storage.REMOVABLE:
        removable = (*removable, line.device)[-REMOVABLE_MAX:]
    return msgspec.structs.replace(memory, removable=removable)


def _after_fatal(record: KernelRecord, line: Line, memory: LineMemory) -> tuple[str, LineMemory]:
    """A failed recovery is the end of a device only where the error was fatal; else it may work on."""
    late = not 0 <= record.timestamp_us - memory.at_us <= RECOVERY_SPAN_US
    left = memory.port_records_left - 1
    ends = line.kind.startswith("pcie/recovery-")
    kind = line.kind
    if ends and not late and kind == "pcie/recovery-failed":
        kind = "pcie/recovery-failed-fatal"
    if ends or late or left <= 0:
        return kind, msgspec.structs.replace(memory, port="", port_records_left=0)
    return kind, msgspec.structs.replace(memory, port_records_left=left)


def _driver_module(record: KernelRecord, text: str, memory: LineMemory) -> tuple[Fact | None, LineMemory]:
    """Stack frames in the driver behind a stuck task, GPUs it did not take, and its farewell."""
    for literal in _PROBES:
        if literal in text:
            piece, begin = window(text, literal)
            if not quoted(text, begin + piece.find("nvidia")):
                return driver.probed(record, piece, memory)
    if memory.task:
        late = not 0 <= record.timestamp_us - memory.at_us <= STACK_SPAN_US
        if not late and _STACK in text and _FRAME.search(window(text, _STACK)[0]):
            task = memory.task
            fact = _hung(record, task, f"task {task} is stuck in {text.strip()[:FACT_TEXT_MAX]}")
            return fact, msgspec.structs.replace(memory, task="", task_records_left=0)
        left = memory.task_records_left - 1
        memory = msgspec.structs.replace(
            memory, task="" if late or left <= 0 else memory.task, task_records_left=max(left, 0)
        )
    if _UNLOADED in text:
        piece, begin = window(text, _UNLOADED)
        found = _LEFT.search(piece)
        if found and not quoted(text, begin + found.start()):
            return DriverUnloadedFact(
                sequence=record.sequence, timestamp_us=record.timestamp_us, text=piece[found.start() :]
            ), memory
    return None, memory


def _hung(record: KernelRecord, process: str, text: str) -> HungTaskFact:
    return HungTaskFact(
        sequence=record.sequence,
        timestamp_us=record.timestamp_us,
        text=text[:FACT_TEXT_MAX],
        process=process,
    )


def _sxid(record: KernelRecord, start: int) -> SxidFact | None:
    found = _SXID.match(record.text, start)
    head = record.text[max(0, start - 32) : start]
    who = _SWITCH_DRIVER.search(head)
    if found is None or quoted(record.text, start - len(who[0]) if who else start):
        return None
    return SxidFact(
        sequence=record.sequence,
        timestamp_us=record.timestamp_us,
        text=record.text[start : start + FACT_TEXT_MAX],
        address=pci_address(found[1], found[2], found[3], found[4]),
        code=int(found[5]),
        fatal=found[6] == "Fatal" if found[6] else None,
        link=int(found[7]) if found[7] else None,
    )


__all__ = ["LITERALS", "LineMemory", "interesting", "normalise", "read", "trusted"]
