"""dcgm-exporter's page: few series, blank values, labels with anything in them, pieces cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.sources.dcgm_exporter import GPUS_MAX, LINE_BYTES_MAX, ExporterPage, ExporterPageReader
from tests.dcgm import recorded


def read(text: bytes, piece: int = 1 << 20) -> ExporterPage:
    reader = ExporterPageReader()
    for start in range(0, len(text), piece):
        reader.feed(text[start : start + piece])
    return reader.page()


def test_a_page_gives_each_gpu_with_its_identity() -> None:
    """UUID and PCI address come from the labels, MIG instances stand apart."""
    page = read(recorded("exporter-h100.prom"))

    first, second, third, instance = page.gpus
    assert (first.index, first.pci_address) == (0, "0000:0f:00.0")
    assert first.uuid == "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
    assert (first.xid_last, first.remap_failed, first.blank) == (31, True, False)
    assert (second.remap_failed, second.health_status) == (False, 0)
    assert (instance.index, instance.instance, instance.xid_last) == (3, 2, 94)
    assert third.index == 2


def test_the_worst_watch_counts() -> None:
    """One GPU has a series for each watch."""
    assert read(recorded("exporter-h100.prom")).gpus[0].health_status == 20


def test_blank_values_and_missing_series_are_unknown() -> None:
    """DCGM writes enormous numbers where it knows nothing; none of them is a reading."""
    third = read(recorded("exporter-h100.prom")).gpus[2]

    assert third.remap_failed is None
    assert third.xid_last is None
    assert not third.blank  # its temperature is known
    assert read(b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 9.223372036854776e+18\n').gpus[0].blank


def test_a_page_with_few_series_is_not_a_blank_one() -> None:
    """People choose what they export; only a series without a value tells of blindness."""
    assert not read(b'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\n').gpus[0].blank


def test_a_page_of_an_older_exporter_has_no_addresses() -> None:
    """As recorded: index and UUID only."""
    (gpu,) = read(recorded("exporter-3.1-a100.prom")).gpus

    assert (gpu.index, gpu.pci_address, gpu.xid_last, gpu.blank) == (0, "", 0, False)
    assert gpu.uuid.startswith("GPU-34319582")


@given(st.integers(1, 200))
def test_pieces_cut_anywhere_give_the_same_page(piece: int) -> None:
    """The network cuts where it likes."""
    text = recorded("exporter-h100.prom")

    assert read(text, piece) == read(text)


def test_a_last_line_without_its_end_is_not_believed() -> None:
    """It may have been cut within its number."""
    assert read(b'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 7').gpus == ()


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"x", b"1e999"])
def test_what_is_no_number_is_unknown(value: bytes) -> None:
    """A reading of nothing."""
    assert read(b'DCGM_FI_DEV_XID_ERRORS{gpu="0"} ' + value + b"\n").gpus[0].xid_last is None


def test_the_fingerprint_moves_with_power_and_energy_only() -> None:
    """Temperature may stand still for hours; power to the last digit does not."""
    page = recorded("exporter-h100.prom")

    same = read(page.replace(b"61", b"62"))
    assert same.fingerprint == read(page).fingerprint
    assert read(page.replace(b"409.692", b"409.693")).fingerprint != same.fingerprint
    assert read(b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 1\n').fingerprint is None


def test_another_page_has_no_series() -> None:
    """The port of somebody else's exporter."""
    page = read(b'# HELP node_load1 1m\nnode_load1 0.5\nnode_uname_info{machine="x86_64"} 1\n')

    assert (page.gpus, page.series) == ((), 0)


def test_an_endless_line_and_endless_gpus_are_bounded() -> None:
    """And counted."""
    endless = b"DCGM_FI_DEV_XID_ERRORS{" + b"a" * (5 * LINE_BYTES_MAX) + b"} 1\n"
    many = b"".join(b'DCGM_FI_DEV_XID_ERRORS{gpu="%d"} 0\n' % i for i in range(GPUS_MAX + 9))

    page = read(endless + many, 1000)

    assert len(page.gpus) == GPUS_MAX
    assert page.lines_dropped == 10


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_give_a_page(pieces: list[bytes]) -> None:
    """A hostile exporter is read as well as a good one."""
    reader = ExporterPageReader()
    for piece in pieces:
        reader.feed(b"DCGM_FI_DEV_XID_ERRORS{" + piece + b"\n")

    assert len(reader.page().gpus) <= 8
