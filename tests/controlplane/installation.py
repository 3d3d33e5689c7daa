"""outlast's own manifests on a control plane, and the identities that pods of its processes have.

Tokens come from TokenRequest and are bound to a pod on a node: the admission policies read the node
and the pod from exactly these tokens, so nothing else would prove them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tests.controlplane.access import JSON, MERGE, Access
from tests.controlplane.machines import Machine, node_object, node_status
from tests.controlplane.plane import Plane
from tests.controlplane.processes import wait_until

Json = dict[str, Any]

NAMESPACE = "outlast-system"
AGENT = "outlast-agent"
CONTROLLER = "outlast-controller"
LEADER_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/outlast-controller"
EVENTS = "/api/v1/namespaces/default/events"
PROBE = "outlast-policy-probe"
"""A Node without room for pods, on which it is tried whether the policies refuse."""
MANIFESTS = Path(__file__).parents[2] / "deploy"
EFFECTIVE_DEADLINE_S = 20.0
TOKEN_VALID_S = 3600

NODECLAIM_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: nodeclaims.karpenter.sh}
spec:
  group: karpenter.sh
  scope: Cluster
  names: {kind: NodeClaim, listKind: NodeClaimList, plural: nodeclaims, singular: nodeclaim}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
"""Karpenter's NodeClaim by name only: enough for rights, which never look inside."""


class Installation:
    """CRDs and rights of `deploy/` on one control plane; tokens for pods of its ServiceAccounts."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.admin = plane.admin

    def install(self) -> None:
        """Apply the manifests; returns when the policies are in force."""
        self.plane.kubectl("apply", "-f", "-", stdin=NODECLAIM_CRD)
        for part in ("crds", "rights"):
            self.plane.kubectl("apply", "-k", str(MANIFESTS / part))
        names = sorted(path.stem for path in (MANIFESTS / "crds").glob("*.outlast.dev.yaml"))
        crds = [f"crd/{name}" for name in names]
        self.plane.kubectl(
            "wait", "--for=condition=Established", "--timeout=20s", "crd/nodeclaims.karpenter.sh", *crds
        )
        # Established is not yet served: the first list may still answer 429 "storage is (re)initializing".
        self.plane.wait_for("/apis/karpenter.sh/v1/nodeclaims")
        for name in names:
            plural, group = name.split(".", 1)
            self.plane.wait_for(f"/apis/{group}/v1alpha1/{plural}")
        self._wait_in_force()

    def node(self, name: str) -> Machine:
        """Register a node without a kubelet; good for as long as nothing needs it Ready."""
        machine = Machine(name)
        self.admin.request("POST", "/api/v1/nodes", node_object(machine))
        body = {"status": node_status(machine)}
        self.admin.request("PATCH", f"/api/v1/nodes/{name}/status", body, content_type=MERGE)
        return machine

    def pod(self, name: str, account: str, node: str) -> Json:
        """A pod of one of our ServiceAccounts, bound to a node; it needs no kubelet to own a token."""
        container = {"name": "main", "image": "none"}
        spec = {
            "serviceAccountName": account,
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        created: Json = self.admin.request("POST", path, {"metadata": {"name": name}, "spec": spec})
        return created

    def token(self, account: str, pod: Json | None = None) -> Access:
        """A token of a ServiceAccount, bound to the pod if there is one."""
        spec: Json = {"expirationSeconds": TOKEN_VALID_S}
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.admin.with_token(self.admin.request("POST", path, body)["status"]["token"])

    def agent(self, node: str) -> Access:
        """The identity of the agent's pod on that node."""
        return self.token(AGENT, self.pod(f"outlast-agent-{node}", AGENT, node))

    def controller(self, name: str, node: str) -> Access:
        """The identity of a controller replica; `name` is its pod name, so its holderIdentity."""
        return self.token(CONTROLLER, self.pod(name, CONTROLLER, node))

    def _wait_in_force(self) -> None:
        """Policies, like all configuration, reach the API server's own cache a moment later."""
        self.admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": PROBE}})
        agent, controller = self.token(AGENT), self.token(CONTROLLER)
        node = f"/api/v1/nodes/{PROBE}"
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        named: Json = {"metadata": {"name": PROBE}}
        annotated: Json = {"metadata": {"annotations": {"probe": "1"}}}
        probes: dict[str, tuple[Access, str, str, Json, str]] = {
            "outlast-agent-node": (agent, "PATCH", f"{node}/status", annotated, MERGE),
            "outlast-agent-objects": (agent, "POST", leases, named, JSON),
            "outlast-agent-events": (agent, "POST", EVENTS, named | {"involvedObject": {}}, JSON),
            "outlast-controller-fence": (controller, "PATCH", node, annotated, MERGE),
        }
        for policy, (access, method, path, body, content_type) in probes.items():
            refused = partial(_refused_by, policy, access, method, path, body, content_type)
            wait_until(refused, deadline_s=EFFECTIVE_DEADLINE_S, what=f"policy {policy} to be in force")


def _refused_by(policy: str, access: Access, method: str, path: str, body: Json, content_type: str) -> bool:
    answer = access.ask(method, f"{path}?dryRun=All", body, content_type=content_type)
    return policy in answer.message
