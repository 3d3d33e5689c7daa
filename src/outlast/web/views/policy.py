"""What is enforced and what is only observed: each policy with its limits and their present use."""

from __future__ import annotations

from datetime import datetime

import msgspec

from outlast.model.health import FaultClass
from outlast.model.policy import Mode, RemediationPolicy, RemediationPolicySpec
from outlast.remediation.decide.ladder import DEFAULT_LADDERS, executable, ladder_for, remarks
from outlast.web.state import FleetState
from outlast.web.views.fleet import Banner, banners, sorted_policies
from outlast.web.views.limits import Limit, limits_of
from outlast.web.wording import span, words_of


class Setting(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One number or choice of a policy."""

    name: str
    value: str
    field: str


class Path(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The ladder of one fault class, as it is walked today."""

    fault_class: str
    rungs: tuple[str, ...]
    is_default: bool
    remark: str = ""


class PolicyCard(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One policy."""

    name: str
    mode: Mode
    selects: str
    nodes: int
    accepted: bool
    accepted_text: str
    stale: bool
    """The newest spec is not in force; the numbers are those in force."""
    limits: tuple[Limit, ...]
    settings: tuple[Setting, ...]
    ladders: tuple[Path, ...]


class PolicyPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The page as data."""

    now: datetime
    synced: bool
    banners: tuple[Banner, ...]
    policies: tuple[PolicyCard, ...]


def policies(state: FleetState, now: datetime) -> PolicyPage:
    """Build the page."""
    return PolicyPage(
        now=now,
        synced=state.synced,
        banners=banners(state),
        policies=tuple(_card(p, state, now) for p in sorted_policies(state)),
    )


def _card(policy: RemediationPolicy, state: FleetState, now: datetime) -> PolicyCard:
    spec = policy.status.in_force or policy.spec
    accepted = next((c for c in policy.status.conditions if c.type == "Accepted"), None)
    selector = ", ".join(f"{k}={v}" for k, v in sorted(spec.node_selector.items()))
    return PolicyCard(
        name=policy.metadata.name,
        mode=spec.mode,
        selects=selector or "every node with GPUs",
        nodes=policy.status.nodes,
        accepted=accepted is None or accepted.status != "False",
        accepted_text=accepted.message if accepted is not None else "",
        stale=policy.status.in_force is not None and policy.status.in_force != policy.spec,
        limits=limits_of(policy, state, now),
        settings=_settings(policy),
        ladders=tuple(_path(fault_class, spec) for fault_class in FaultClass),
    )


def _path(fault_class: FaultClass, spec: RemediationPolicySpec) -> Path:
    written = ladder_for(fault_class, spec)
    return Path(
        fault_class=words_of(fault_class),
        rungs=tuple(words_of(rung) for rung in executable(written) or written),
        is_default=written == DEFAULT_LADDERS[fault_class],
        remark="; ".join(remarks(written)),
    )


def _settings(policy: RemediationPolicy) -> tuple[Setting, ...]:
    spec = policy.status.in_force or policy.spec
    waits = spec.deadlines
    storm = f"{spec.storm.nodes} nodes newly faulty with one code within {span(spec.storm.window_s)}"
    after = "hold for a human" if spec.after_drain_deadline.value == "Hold" else "go on with pods still there"
    replace = "hand over to Karpenter" if spec.replace_with.value != "none" else "hold for a human"
    rows = (
        ("storm", storm, "spec.storm"),
        ("wait for a checkpoint", span(waits.checkpoint_s), "spec.deadlines.checkpointSeconds"),
        ("wait for a drain", span(waits.drain_s), "spec.deadlines.drainSeconds"),
        ("after the drain's deadline", after, "spec.afterDrainDeadline"),
        ("wait for a reboot", span(waits.reboot_s), "spec.deadlines.rebootSeconds"),
        ("wait for a clean check", span(waits.verify_s), "spec.deadlines.verifySeconds"),
        ("reboots in one incident", str(spec.reboot_tries), "spec.rebootTries"),
        ("replacing a machine", replace, "spec.replaceWith"),
        ("wait for a replacement", span(waits.replace_s), "spec.deadlines.replaceSeconds"),
        (
            "same fault again goes one rung higher within",
            span(spec.repeat_window_s),
            "spec.repeatWindowSeconds",
        ),
        (
            "watched after return",
            span(spec.probation_s) if spec.probation_s else "not",
            "spec.probationSeconds",
        ),
        ("a silent agent is blocked after", span(spec.agent_silent_s), "spec.agentSilentSeconds"),
    )
    return tuple(Setting(name=name, value=value, field=field) for name, value, field in rows)
