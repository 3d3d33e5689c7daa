"""Cases of security in tests/data/cases.tsv; the table says what happens and which trap there is."""

from __future__ import annotations

import ast

from tests.acceptance.cases import ROOT, settled
from tests.unit.health.builders import USER, Scene

RIGHTS = ROOT / "tests/e2e/test_agent_rights.py"
ATTACKS = ("sets its condition on another node", "writes the NodeHealth of another node")


def test_up_188_another_nodes_name_is_refused_by_the_api_server() -> None:
    """Proven on a real API server in tests/e2e/test_agent_rights.py; here: that the proofs are there."""
    sources = [path.read_text() for path in RIGHTS.parent.glob("*rights*.py")]
    tests = {
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    assert {
        "test_the_agent_is_refused_when_it",
        "test_a_token_that_is_bound_to_no_pod_writes_nothing",
    } <= tests
    assert all(any(attack in source for source in sources) for attack in ATTACKS)


def test_up_189_only_the_kernel_is_believed() -> None:
    """Any process may write the same words to the kernel log; they are counted and make no fault."""
    scene = Scene()
    for code in (79, 48, 64, 119):
        scene.line(f"NVRM: Xid (PCI:{scene.gpu(0)[:-2]}): {code}, x", priority=USER)
    scene.line("Kernel panic - not syncing: hung_task: blocked tasks", priority=USER)
    assert settled(scene).status.faults == ()
    assert scene.state.untrusted == 5
