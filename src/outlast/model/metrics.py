"""Metrics as data: a process declares a table of them, and a page is rendered from the table and samples.

The format is Prometheus' text format 0.0.4. Names and labels come from the table only; what comes from a
machine can be no more than the value of a label, escaped and cut, and no metric has more series than it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

LABEL_VALUE_MAX: Final = 128
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Series = Iterable[tuple[tuple[str, ...], float | tuple[float, int]]]
"""Label values and the value they have; of a summary (without quantiles) sum and count."""


class Shape(StrEnum):
    """The types of the text format that are used."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a process's table."""

    name: str
    shape: Shape
    about: str
    """What it counts, for people; one sentence."""
    labels: tuple[str, ...] = ()
    series_max: int = 1
    """The most combinations of labels that are shown; the rest is left out."""


class Family(msgspec.Struct, frozen=True):
    """A metric with its values now."""

    metric: Metric
    series: Series


def single(value: float | tuple[float, int]) -> Series:
    """The one series of a metric without labels."""
    return (((), value),)


def render(families: Iterable[Family]) -> bytes:
    """The page."""
    lines: list[str] = []
    for family in families:
        metric = family.metric
        lines.append(f"# HELP {metric.name} {_escaped_help(metric.about)}")
        lines.append(f"# TYPE {metric.name} {metric.shape}")
        for number, (values, value) in enumerate(sorted(family.series)):
            if number == metric.series_max:
                break
            labels = _labels(metric.labels, values)
            if isinstance(value, tuple):
                lines.append(f"{metric.name}_sum{labels} {_number(value[0])}")
                lines.append(f"{metric.name}_count{labels} {value[1]}")
            else:
                lines.append(f"{metric.name}{labels} {_number(value)}")
    return ("\n".join(lines) + "\n").encode()


def table(title: str, metrics: Iterable[Metric]) -> str:
    """The metrics of a process as Markdown."""
    rows = [f"## {title}", "", "| metric | type | labels | most series | what |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        series = metric.series_max * (2 if metric.shape is Shape.SUMMARY else 1)
        rows.append(f"| `{metric.name}` | {metric.shape} | {labels} | {series} | {metric.about} |")
    return "\n".join(rows) + "\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    value = value[:LABEL_VALUE_MAX].encode(errors="replace").decode()
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
