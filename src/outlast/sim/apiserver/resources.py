"""The kinds that are served: names, scope, subresources and the few switches that set them apart.

Built-in kinds are this table; a CustomResourceDefinition adds rows while the server runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlast.sim.apiserver.shapes import (
    CONTROLLER,
    DEFINITION,
    JOB,
    META_ONLY,
    NODE,
    PDB,
    POD,
    SERVICE,
    Shape,
)

if TYPE_CHECKING:
    from outlast.sim.apiserver.crd import CustomKind

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """One served collection."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    """Has a status subresource, so that main writes and status writes cannot touch each other."""
    generation: bool = False
    """`metadata.generation` counts changes of what the user asks for."""
    status_keeps_meta: bool = True
    """A status write leaves labels, annotations and finalizers alone (Node and Pod do not)."""
    unconditional_update: bool = True
    """A PUT without a resourceVersion is taken."""
    returns_deleted: bool = False
    """DELETE answers with the object and not with a Status."""
    graceful: bool = False
    """DELETE waits for a kubelet (pods)."""
    shape: Shape = META_ONLY
    custom: CustomKind | None = None
    fields: tuple[str, ...] = ()
    """Selectable fields beside metadata.name and metadata.namespace."""
    triggers: tuple[str, ...] = ("metadata.name",)
    """Fields by which watchers are indexed, so that a write does not visit all of them."""

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`nodes` or `incidents.outlast.dev`, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> tuple[str, str]:
        """Where it is stored, whatever the version."""
        return (self.group, self.plural)


def _core(kind: str, plural: str, **more: object) -> Resource:
    return Resource("", "v1", kind, plural, **more)  # type: ignore[arg-type]


_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_EVENT_FIELDS = (
    "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
    "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
    "reason", "reportingComponent", "source", "type",
)  # fmt: skip
_POD_FIELDS = (
    "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
    "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
)  # fmt: skip

CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions",
    namespaced=False, short_names=("crd", "crds"), categories=("api-extensions",),
    status=True, generation=True, unconditional_update=False, shape=DEFINITION,
)  # fmt: skip
NAMESPACES = _core(
    "Namespace", "namespaces", namespaced=False, short_names=("ns",), status=True, fields=("status.phase",)
)
NODES = _core(
    "Node", "nodes", namespaced=False, short_names=("no",), status=True, status_keeps_meta=False,
    shape=NODE, fields=("spec.unschedulable",),
)  # fmt: skip
PODS = _core(
    "Pod", "pods", short_names=("po",), categories=("all",), status=True, status_keeps_meta=False,
    generation=True, returns_deleted=True, graceful=True, shape=POD, fields=_POD_FIELDS,
    triggers=("metadata.name", "spec.nodeName"),
)  # fmt: skip
EVENTS = _core("Event", "events", short_names=("ev",), fields=_EVENT_FIELDS)
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases", unconditional_update=False)
JOBS = Resource(
    "batch", "v1", "Job", "jobs", categories=("all",), status=True, generation=True, shape=JOB,
    fields=("status.successful",),
)  # fmt: skip
PDBS = Resource(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", short_names=("pdb",), status=True,
    generation=True, unconditional_update=False, shape=PDB,
)  # fmt: skip


def _apps(kind: str, plural: str, short: str) -> Resource:
    return Resource(
        "apps", "v1", kind, plural, short_names=(short,), categories=("all",), status=True,
        generation=True, shape=CONTROLLER,
    )  # fmt: skip


DAEMONSETS = _apps("DaemonSet", "daemonsets", "ds")
DEPLOYMENTS = _apps("Deployment", "deployments", "deploy")
REPLICASETS = _apps("ReplicaSet", "replicasets", "rs")

BUILT_IN: tuple[Resource, ...] = (
    NAMESPACES, NODES, PODS, EVENTS, LEASES, JOBS, PDBS, CUSTOM_RESOURCE_DEFINITIONS, DAEMONSETS,
    _core("ConfigMap", "configmaps", short_names=("cm",)),
    _core("Secret", "secrets", fields=("type",)),
    _core("Service", "services", short_names=("svc",), categories=("all",), status=True,
          returns_deleted=True, shape=SERVICE),
    _core("ServiceAccount", "serviceaccounts", short_names=("sa",), returns_deleted=True),
    _core("PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), status=True),
    DEPLOYMENTS, REPLICASETS,
    _apps("StatefulSet", "statefulsets", "sts"),
    Resource(_RBAC, "v1", "Role", "roles"),
    Resource(_RBAC, "v1", "RoleBinding", "rolebindings"),
    Resource(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False),
    Resource(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    Resource(_ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies",
             namespaced=False, categories=("api-extensions",), status=True, generation=True,
             unconditional_update=False),
    Resource(_ADMISSION, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings",
             namespaced=False, categories=("api-extensions",), unconditional_update=False),
    Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False,
             short_names=("pc",)),
    Resource("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False),
    Resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False),
    Resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", status=True),
)  # fmt: skip


@dataclass(slots=True)
class Catalogue:
    """What is served now; `changes` moves when a kind comes or goes, for discovery caches."""

    _rows: dict[tuple[str, str, str], Resource] = field(default_factory=dict)
    changes: int = 0

    def add(self, resource: Resource) -> None:
        """Serve a kind, or replace its row."""
        self._rows[(resource.group, resource.version, resource.plural)] = resource
        self.changes += 1

    def remove(self, resource: Resource) -> None:
        """Stop serving a kind."""
        self._rows.pop((resource.group, resource.version, resource.plural), None)
        self.changes += 1

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The row behind a path, or None."""
        return self._rows.get((group, version, plural))

    def by_api_version(self, api_version: str, plural: str) -> Resource | None:
        """The same by `group/version` as objects write it."""
        group, _, version = api_version.rpartition("/")
        return self.find(group, version, plural)

    def stored(self, key: tuple[str, str]) -> Resource | None:
        """The row for a storage key."""
        return next((r for r in self._rows.values() if r.key == key), None)

    def rows(self) -> tuple[Resource, ...]:
        """All rows, built-in kinds first."""
        return tuple(self._rows.values())


def built_in() -> Catalogue:
    """A catalogue of the built-in kinds."""
    catalogue = Catalogue()
    for resource in BUILT_IN:
        catalogue.add(resource)
    return catalogue
