"""Mode Observe: the same judgement, written down as what would be done; nothing else is touched."""

from __future__ import annotations

from outlast.model.cluster import Node
from outlast.model.incident import EndResult, Phase
from outlast.model.names import MANAGED_ANNOTATION
from outlast.model.policy import Mode, Rung
from outlast.remediation.decide.ending import end
from outlast.remediation.decide.faults import lacks_proof
from outlast.remediation.decide.ladder import executable, held_by_witness, ladder_for, remarks
from outlast.remediation.decide.opening import is_unmanaged
from outlast.remediation.decide.story import Story

PHRASES = {
    Rung.BLOCK_NEW_WORK: "block new work",
    Rung.REQUEST_CHECKPOINT: "ask jobs to checkpoint",
    Rung.DRAIN: "drain",
    Rung.REBOOT: "reboot",
    Rung.REPLACE: "hand the machine over for replacement",
    Rung.HOLD: "hold for a human",
}


def observe(story: Story, node: Node) -> None:
    """Keep an observed incident up to date, and close it when the fault is over or the policy enforces."""
    if story.ruling.spec.mode is Mode.ENFORCE and not is_unmanaged(node):
        end(story, EndResult.NOT_NEEDED, "the policy enforces now: an incident that acts takes over")
        return
    if not story.faults:
        missing = lacks_proof(story.situation, story.ruling.spec, story.incident.spec.faults)
        if not missing:
            end(story, EndResult.NOT_NEEDED, "the fault cleared by proof; it was only observed")
            return
        story.block_by(f"waiting for proof of health: {missing}")
    unmanaged = is_unmanaged(node)
    story.block_by(
        f"{MANAGED_ANNOTATION}=false" if unmanaged else f"policy {story.ruling.name} is in mode Observe"
    )
    story.record(phase=Phase.WAITING, step=Rung.WATCH)
    if not story.faults:
        return
    leading = story.faults[0]
    written = ladder_for(leading.fault_class, story.ruling.spec)
    would = [r for r in executable(written) if not held_by_witness(leading, r)]
    text = "would " + ", then ".join(PHRASES[rung] for rung in would)
    story.decide(Rung.WATCH, "OnlyObserved", ". ".join((f"{leading.code}: {text}", *remarks(written))))
    story.expect(Rung.WATCH, f"nothing is done to the node; under Enforce outlast {text}")
