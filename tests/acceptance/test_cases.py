"""Every case of tests/data/cases.tsv has a test with its id in this directory."""

from __future__ import annotations

import re
from pathlib import Path

from tests.acceptance.cases import CASES


def test_every_case_has_a_test_with_its_id() -> None:
    """A case without a test would be a promise that nobody keeps."""
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*_cases.py")]
    tested = {
        f"UP-{number}" for source in sources for number in re.findall(r"\ndef test_up_(\d{3})_", source)
    }
    assert tested == set(CASES)
