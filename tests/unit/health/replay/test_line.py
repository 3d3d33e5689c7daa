"""Every way a kernel line is written down gives the same text, and only the kernel's own lines count."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.replay import read_line

XID = "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."
NOVEMBER = datetime(2000, 11, 30, 12, 0, 0, tzinfo=UTC)

KERNEL_FORMS = {
    "nothing": ("", None, None, ""),
    "dmesg": ("[74889.644138] ", 74889644138, None, ""),
    "dmesg with caller": ("[74889.644138][T12] ", 74889644138, None, ""),
    "dmesg with caller apart": ("[    1.000001] [  T123] ", 1000001, None, ""),
    "syslog(2)": ("<4>[   12.500000] ", 12500000, None, ""),
    "dmesg -T": ("[Fri Aug 30 11:43:09 2024] ", None, datetime(2024, 8, 30, 11, 43, 9, tzinfo=UTC), ""),
    "dmesg -T in Polish": (
        "[pon kwi 30 11:22:33 2026] ",
        None,
        datetime(2026, 4, 30, 11, 22, 33, tzinfo=UTC),
        "",
    ),
    "dmesg -T in French": (
        "[lun. août 19 11:36:35 2024] ",
        None,
        datetime(2024, 8, 19, 11, 36, 35, tzinfo=UTC),
        "",
    ),
    "dmesg iso with comma": (
        "2026-11-30T12:00:00,123456+01:00 ",
        None,
        datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=1))),
        "",
    ),
    "dmesg -x": ("kern  :warn  : [   12.300000] ", 12300000, None, ""),
    "dmesg -e": ("[Nov30 12:00] ", None, NOVEMBER, ""),
    "dmesg in colours": ("\x1b[32m[   12.300000] \x1b[0m\x1b[33m", 12300000, None, ""),
    "time removed": ("[...] ", None, None, ""),
    "rsyslog": ("Nov 30 12:00:00 gpu-1 kernel: ", None, NOVEMBER, "gpu-1"),
    "rsyslog with uptime": ("Nov 30 12:00:00 gpu-1 kernel: [   12.345678] ", 12345678, NOVEMBER, "gpu-1"),
    "rsyslog without host": ("Nov 30 12:00:00 kernel: ", None, NOVEMBER, ""),
    "rsyslog RFC 3339": (
        "2026-11-30T12:00:00.5+00:00 gpu-1 kernel: [   12.3] ",
        12300000,
        datetime(2026, 11, 30, 12, 0, 0, 500000, tzinfo=UTC),
        "gpu-1",
    ),
    "syslog in Polish": (
        "kwi 30 12:00:00 h kernel: ",
        None,
        datetime(2000, 4, 30, 12, tzinfo=UTC),
        "h",
    ),
    "syslog in French": ("août  9 12:00:00 h kernel: ", None, datetime(2000, 8, 9, 12, tzinfo=UTC), "h"),
    "syslog in Japanese": ("11月 30 12:00:00 h kernel: ", None, NOVEMBER, "h"),
    "an unknown month": ("Xyz 30 12:00:00 h kernel: ", None, None, "h"),
    "no such day": ("Feb 31 12:00:00 h kernel: ", None, None, "h"),
    "leap day without a year": (
        "Feb 29 12:00:00 h kernel: ",
        None,
        datetime(2000, 2, 29, 12, tzinfo=UTC),
        "h",
    ),
    "tag alone": ("kernel: ", None, None, ""),
    "host and tag": ("gpu-1 kernel: ", None, None, "gpu-1"),
    "journal short-monotonic": ("[   12.300000] gpu-1 kernel: ", 12300000, None, "gpu-1"),
    "journal short-unix": (
        "1700000000.250000 gpu-1 kernel: ",
        None,
        datetime(2023, 11, 14, 22, 13, 20, 250000, tzinfo=UTC),
        "gpu-1",
    ),
    "RFC 5424": (
        "<4>1 2026-11-30T12:00:00Z gpu-1 kernel - - - ",
        None,
        datetime(2026, 11, 30, 12, tzinfo=UTC),
        "gpu-1",
    ),
    "busybox": ("Sat Nov 30 12:00:00 2024 kern.warn kernel: [   12.0] ", 12000000, ..., ""),
    "grep over files": ("kern.log:12:Nov 30 12:00:00 h kernel: ", None, NOVEMBER, "h"),
    "date alone, host and tag taken out": ("Nov 30 12:00:00  ", None, NOVEMBER, ""),
    "journal short-full": (
        "Mon 2026-11-30 12:00:00 CET h kernel: ",
        None,
        datetime(2026, 11, 30, 12, tzinfo=UTC),
        "h",
    ),
    "talosctl dmesg": (
        "192.168.11.119: kern: warning: [2026-11-30T12:00:00.291660856Z]: ",
        None,
        datetime(2026, 11, 30, 12, 0, 0, 291660, tzinfo=UTC),
        "192.168.11.119",
    ),
    "talosctl dmesg on the node": (
        "kern:     err: [2026-11-30T12:00:00Z]: ",
        None,
        datetime(2026, 11, 30, 12, tzinfo=UTC),
        "",
    ),
    "grep with context": ("/var/log/syslog.1-1234-Nov 30 12:00:00 h kernel: ", None, NOVEMBER, "h"),
    "/dev/kmsg": ("4,1227,74889644138,c;", 74889644138, None, ""),
}

FOREIGN_FORMS = {
    "logger": "Nov 30 12:00:00 gpu-1 root: ",
    "logger with pid": "Nov 30 12:00:00 gpu-1 root[12]: ",
    "logger -t NVRM": "Nov 30 12:00:00 gpu-1 ",
    "logger with the tag in the text": "Nov 30 12:00:00 gpu-1 root: kernel: ",
    "the same without a date": "root: kernel: ",
    "a process called kernel": "Nov 30 12:00:00 gpu-1 kernel[12]: ",
    "RFC 3339": "2026-11-30T12:00:00.123456+00:00 gpu-1 python3[7]: ",
    "user facility": "<12>[    1.200000] ",
    "user facility with date": "<12>Nov 30 12:00:00 gpu-1 ",
    "user record of /dev/kmsg": "12,3,4,-;",
    "dmesg -x": "user  :warn  : [    1.200000] ",
    "talosctl dmesg": "192.168.11.119: user: warning: [2026-11-30T12:00:00.291660856Z]: ",
    "journal short-monotonic": "[   12.300000] gpu-1 root[123]: ",
    "container log": "2026-11-30T12:00:00.000000000Z stdout F ",
    "quoted": 'time="now" msg="',
    "told about": "ERROR: saw ",
    "other JSON": '{"log":"',
}


@pytest.mark.parametrize("form", KERNEL_FORMS)
@pytest.mark.parametrize("end", ["", "\r"], ids=["unix", "windows"])
def test_the_kernels_line_is_found_in_every_format(form: str, end: str) -> None:
    """Text, time, host and origin come out of each format of the tools that print kernel logs."""
    prefix, uptime_us, wall, host = KERNEL_FORMS[form]

    line = read_line((prefix + XID + end).encode())

    assert (line.text, line.kernel, line.uptime_us, line.host) == (XID, True, uptime_us, host)
    assert wall is ... or line.wall == wall


@pytest.mark.parametrize("form", FOREIGN_FORMS)
def test_the_same_words_of_a_program_are_not_the_kernels(form: str) -> None:
    """Any user can log a driver's words; only the place of the kernel's tag or its facility counts."""
    assert not read_line((FOREIGN_FORMS[form] + XID).encode()).kernel


def test_a_tagless_line_with_a_date_counts_only_where_nobody_can_write_to_the_log() -> None:
    """A live log file is written by everybody, so `strict` asks for the tag."""
    line = f"Nov 30 12:00:00  {XID}".encode()

    assert read_line(line).kernel
    assert not read_line(line, strict=True).kernel
    assert read_line(f"Nov 30 12:00:00 h kernel: {XID}".encode(), strict=True).kernel


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ('"NVRM: one\\nNVRM: two"', "NVRM: one\nNVRM: two"),
        ("[78,86,82,77,58,32,255]", "NVRM: \ufffd"),
        ("null", ""),
        ('["NVRM: a","b"]', "NVRM: a\nb"),
        ("[300,-1]", ""),
        ('{"x":1}', ""),
    ],
    ids=["newline", "bytes", "null", "several", "no bytes", "object"],
)
def test_a_journal_message_may_have_any_shape(message: str, text: str) -> None:
    """Text, numbers where it is not clean UTF-8, null where it was too long."""
    line = read_line(f'{{"MESSAGE":{message},"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0"}}'.encode())

    assert (line.text, line.kernel) == (text, True)


@pytest.mark.parametrize(
    "fields",
    [
        '"_TRANSPORT":"syslog","SYSLOG_IDENTIFIER":"kernel"',
        '"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1"',
        '"_TRANSPORT":"stdout"',
        '"SYSLOG_FACILITY":"0"',
    ],
)
def test_a_journal_entry_is_the_kernels_only_by_transport_and_facility(fields: str) -> None:
    """Users reach the journal by other transports, and through /dev/kmsg with another facility."""
    assert not read_line(f'{{"MESSAGE":"{XID}",{fields}}}'.encode()).kernel


def test_a_journal_entry_carries_cursor_boot_and_times() -> None:
    """Kernel time is the source's, where the journal has it."""
    line = read_line(
        b'{"MESSAGE":"x","_TRANSPORT":"kernel","__CURSOR":"s=1;i=2","_BOOT_ID":"AB12","_HOSTNAME":"h",'
        b'"__MONOTONIC_TIMESTAMP":"900","_SOURCE_MONOTONIC_TIMESTAMP":"800",'
        b'"__REALTIME_TIMESTAMP":"1700000000250000","PRIORITY":"4"}'
    )

    assert (line.cursor, line.boot_id, line.uptime_us, line.host) == ("s=1;i=2", "ab12", 800, "h")
    assert line.wall == datetime(2023, 11, 14, 22, 13, 20, 250000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "boot"),
    [
        ("-- Boot 5fd2d9f0a3c14c7c8d8e9fa0b1c2d3e4 --", "5fd2d9f0a3c14c7c8d8e9fa0b1c2d3e4"),
        ("-- Reboot --", ""),
    ],
)
def test_the_journals_line_between_boots_is_a_boundary(text: str, boot: str) -> None:
    """It tells the new boot's id, where the tool prints one."""
    assert read_line(text.encode()).boundary == boot


@pytest.mark.parametrize(
    "text", [" SUBSYSTEM=pci", " DEVICE=+pci:0000:02:00.0 NVRM: Xid (PCI:0000:02:00): 79"]
)
def test_a_records_own_properties_are_never_searched(text: str) -> None:
    """Their values are not the kernel's words."""
    assert not read_line(text.encode()).relevant


def test_the_newlines_that_rsyslog_escapes_come_back() -> None:
    """The off-bus text is one record of three lines."""
    line = read_line(
        b"Nov 30 12:00:00 h kernel: NVRM: The NVIDIA GPU 0000:b3:00.0#012NVRM: fallen off the bus"
    )

    assert line.text == "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen off the bus"


@given(st.binary(max_size=400))
def test_no_bytes_make_a_line_fail(raw: bytes) -> None:
    """Whatever is in a file, reading a line of it ends with an answer."""
    read_line(raw)


_PIECES = (
    [p[0] for p in KERNEL_FORMS.values()] + list(FOREIGN_FORMS.values()) + [XID, '{"MESSAGE":', "[", "-- "]
)


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=12)), max_size=8))
def test_no_mixture_of_formats_makes_a_line_fail(pieces: list[str]) -> None:
    """Decorations in any order and number."""
    read_line("".join(pieces).encode("utf-8", "surrogatepass"))
