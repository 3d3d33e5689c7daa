"""Kubernetes over HTTP: implements the ports of `outlast.ports.cluster`.

`find_access` says where the cluster is, `KubernetesCluster` talks to it, `LeaderElection` decides who may
write, `QueuedEvents` tells people. docs/mechanisms/kubernetes-client.md explains how.
"""

from outlast.adapters.kubernetes.access import Access, Trust, access_with_token
from outlast.adapters.kubernetes.client import FIELD_MANAGER, KubernetesCluster
from outlast.adapters.kubernetes.credentials import KubeconfigError
from outlast.adapters.kubernetes.events import QueuedEvents
from outlast.adapters.kubernetes.kubeconfig import find_access, load_kubeconfig
from outlast.adapters.kubernetes.lease import LeaderElection, LeaseTimes
from outlast.adapters.kubernetes.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "find_access",
    "load_kubeconfig",
    "access_with_token",
    "Access",
    "Trust",
    "KubeconfigError",
    "KubernetesCluster",
    "FIELD_MANAGER",
    "Limits",
    "DEFAULT_LIMITS",
    "LeaderElection",
    "LeaseTimes",
    "QueuedEvents",
]
