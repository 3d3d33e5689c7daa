"""Recorded kernel logs, judged again: lines of any format to records, virtual time, a report. Pure.

`Replay` is the door for whole logs, `read_line` for single lines of a live source.
"""

from outlast.health.replay.line import LogLine, read_line
from outlast.health.replay.replay import Replay
from outlast.health.replay.story import Report

__all__ = ["LogLine", "Replay", "Report", "read_line"]
