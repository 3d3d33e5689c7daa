"""The configuration survives the way into the agent's own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.agent.config import Config

CONFIG = Config(
    node_name="gpu-0",
    kubeconfig=None,
    namespace="outlast-system",
    kernel_log="auto",
    host_root=Path("/"),
    proc_root=Path("/proc"),
    state_dir=Path("/var/lib/with space"),
    poll_interval_s=15.0,
    heartbeat_s=300.0,
    lease_renew_s=60.0,
    expected_gpus=8,
    expected_efa=None,
    catalogues=(Path("/etc/xid.csv"), Path("/etc/\u00e9.csv")),
    note='a "note"',
    trust_user_records=False,
)


def test_a_configuration_reads_back_as_it_was() -> None:
    """Paths, quotes and letters beyond ASCII are the same on the other side."""
    assert Config.from_json(CONFIG.to_json()) == CONFIG


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"node_name": 1}', CONFIG.to_json()[:-1]])
def test_anything_else_is_refused(text: str) -> None:
    """A process that was started by hand says so instead of running with half a configuration."""
    with pytest.raises(ValueError, match=r"\S"):
        Config.from_json(text)
