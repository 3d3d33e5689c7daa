"""The example alerts: real PromQL over metrics that exist, each with a page that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from outlast.agent.metrics import METRICS as AGENT
from outlast.controller.metrics import METRICS as CONTROLLER
from outlast.model.health import Subsystem, Verdict
from outlast.model.incident import Phase
from outlast.model.metrics import Metric

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy/monitoring"
RUNBOOKS = ROOT / "docs/runbooks"
SCRAPED = {"node", "pod", "namespace", "job", "instance", "container", "endpoint"}
"""Labels that the scrape adds."""
KNOWN: dict[str, Metric] = {metric.name: metric for metric in (*AGENT, *CONTROLLER)}
VALUES = {
    ("outlast_node_condition", "type"): {subsystem.condition_type for subsystem in Subsystem},
    ("outlast_node_condition", "status"): {"true", "false", "unknown"},
    ("outlast_incidents_open", "phase"): {phase.value for phase in Phase},
}

(RULE,) = yaml.safe_load_all((MONITORING / "alerts.yaml").read_text())
ALERTS: list[Json] = [alert for group in RULE["spec"]["groups"] for alert in group["rules"]]


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    """Every selector of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from selectors(node.vector_selector)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    else:
        for part in ("lhs", "rhs", "expr"):
            if hasattr(node, part):
                yield from selectors(getattr(node, part))


def grouping(node: object) -> Iterator[str]:
    """Labels that an expression joins or sums by."""
    modifier = getattr(node, "modifier", None)
    yield from getattr(getattr(modifier, "matching", modifier), "labels", None) or ()
    for part in ("lhs", "rhs", "expr"):
        if hasattr(node, part):
            yield from grouping(getattr(node, part))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_asks_for_what_there_is(alert: Json) -> None:
    """Its metrics are in the tables, with these labels, and a value that is matched can occur."""
    tree = promql_parser.parse(alert["expr"])
    found = list(selectors(tree))
    assert found
    for selector in found:
        if selector.name == "up":
            continue
        metric = KNOWN[selector.name]
        for matcher in selector.matchers.matchers:
            assert matcher.name in {*metric.labels, *SCRAPED}, matcher
            known = VALUES.get((metric.name, matcher.name))
            if known is not None:
                assert set(matcher.value.split("|")) <= known, matcher
    labels = {label for selector in found if selector.name in KNOWN for label in KNOWN[selector.name].labels}
    assert set(grouping(tree)) <= labels | SCRAPED


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_has_a_page_that_says_what_to_do(alert: Json) -> None:
    """What it means, what outlast does by itself, what to look at, how to overrule."""
    assert {"summary", "description", "runbook_url"} <= set(alert["annotations"])
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    name = alert["annotations"]["runbook_url"].rpartition("/")[2]
    page = (RUNBOOKS / name).read_text()
    assert alert["alert"] in page
    assert alert["expr"] in page
    for part in ("What it means", "What outlast does by itself", "Look at", "Overrule"):
        assert f"**{part}" in page, part
    assert name in (RUNBOOKS / "README.md").read_text()


def test_every_page_belongs_to_an_alert_and_every_condition_has_one() -> None:
    """No page is left over; each condition that can be False wakes somebody."""
    pages = {path.name for path in RUNBOOKS.glob("*.md")} - {"README.md"}
    assert pages == {alert["annotations"]["runbook_url"].rpartition("/")[2] for alert in ALERTS}
    watched = " ".join(alert["expr"] for alert in ALERTS if 'status="false"' in alert["expr"])
    assert all(f'type="{subsystem.condition_type}"' in watched for subsystem in Subsystem)
    assert {verdict.value for verdict in Verdict} == {"Healthy", "Faulty", "Unknown"}


def test_what_is_scraped_is_what_the_manifests_serve() -> None:
    """The monitors select the pods by their label and the port by its name."""
    for monitor in yaml.safe_load_all((MONITORING / "podmonitors.yaml").read_text()):
        name = monitor["metadata"]["name"]
        file = ROOT / f"deploy/workloads/{name.removeprefix('outlast-')}.yaml"
        workload = next(iter(yaml.safe_load_all(file.read_text())))
        template = workload["spec"]["template"]
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= template["metadata"]["labels"].items()
        (port,) = template["spec"]["containers"][0]["ports"]
        assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
        (address,) = (
            variable["value"]
            for variable in template["spec"]["containers"][0]["env"]
            if variable["name"] == "OUTLAST_METRICS_ADDRESS"
        )
        assert address == f":{port['containerPort']}"
