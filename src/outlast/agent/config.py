"""The agent's command line as data, and as the one argument that the agent's own process takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an operator may say to an agent."""

    node_name: str
    kubeconfig: Path | None
    namespace: str
    kernel_log: str
    host_root: Path
    proc_root: Path
    state_dir: Path
    poll_interval_s: float
    heartbeat_s: float
    lease_renew_s: float
    expected_gpus: int | None
    expected_efa: int | None
    catalogues: tuple[Path, ...]
    note: str
    trust_user_records: bool
    application_rule: str = "shadow"
    dcgm: str = "auto"
    dcgm_exporter: str = ""
    metrics_address: str = ""

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads back."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> Config:
        """The configuration in `text`. Raises ValueError with what is wrong with it."""
        return msgspec.json.decode(text, type=cls, dec_hook=_path)


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{value!r} is no {kind.__name__}")
