"""The domain's explanation of an incident, from the objects the dashboard has at hand."""

from __future__ import annotations

from datetime import datetime

from outlast.model.incident import Incident
from outlast.remediation.explain import explain
from outlast.remediation.page import ExplainPage
from outlast.web.state import FleetState


def explain_incident(state: FleetState, incident: Incident, now: datetime) -> ExplainPage:
    """Explain one incident. A newer machine that took over the node's name is left out of its story."""
    node = state.nodes.get(incident.spec.node_name)
    if node is not None and incident.spec.node_uid not in ("", node.metadata.uid):
        node = None
    health = state.healths.get(incident.spec.node_name) if node is not None else None
    return explain(incident, node, health, state.policies.get(incident.spec.policy), None, now)
