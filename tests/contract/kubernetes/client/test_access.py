"""Every way to show who we are, to a real API server; and that server going away and coming back."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from outlast.adapters.clock import SystemClock
from outlast.adapters.kubernetes import KubernetesCluster, Limits, find_access
from outlast.model.cluster import NODES, PODS
from outlast.ports.cluster import Forbidden, Patch, PatchType, Unauthorized, Unavailable
from tests.contract.kubernetes.client.waiting import Told, running, unique, until
from tests.controlplane.plane import Plane, PlaneOptions

pytestmark = pytest.mark.asyncio

LABEL = Patch(PatchType.MERGE, {"metadata": {"labels": {"x": "y"}}})


def kubeconfig(plane: Plane, folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / unique("kubeconfig")
    entry = {"server": plane.admin.url, "certificate-authority": str(plane.admin.ca_file)} | cluster
    content = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {k: v for k, v in entry.items() if v is not None}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def client(path: Path, **limits: Any) -> KubernetesCluster:
    return KubernetesCluster(find_access(path), clock=SystemClock(), rng=Random(1), limits=Limits(**limits))


async def test_a_client_certificate_opens_the_door(controlplane: Plane, tmp_path: Path) -> None:
    """Common name and organisation are user and groups."""
    pair = controlplane.client_certificate("cert-admin", "system:masters")
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    async with client(kubeconfig(controlplane, tmp_path, user)) as cluster:
        await cluster.list(NODES)
    pair = controlplane.client_certificate("nobody")
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    async with client(kubeconfig(controlplane, tmp_path, user)) as cluster:
        with pytest.raises(Forbidden, match="nobody"):
            await cluster.list(NODES)


async def test_an_exec_plugin_and_a_token_file_open_the_door(controlplane: Plane, tmp_path: Path) -> None:
    """The plugin's token is the administrator's; impersonation acts as written."""
    version = "client.authentication.k8s.io/v1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": controlplane.admin.token}}
    (tmp_path / "answer").write_text(json.dumps(answer))
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    exec_user = {"exec": {"command": "./plugin", "apiVersion": version, "interactiveMode": "Never"}}
    async with client(kubeconfig(controlplane, tmp_path, exec_user)) as cluster:
        await cluster.list(NODES)
    (tmp_path / "token").write_text(controlplane.admin.token)
    file_user = {"tokenFile": "token", "as": "system:node:x", "as-groups": ["system:nodes"]}
    async with client(kubeconfig(controlplane, tmp_path, file_user)) as cluster:
        with pytest.raises(Forbidden, match="system:node:x"):
            await cluster.list(PODS)


async def test_a_wrong_token_and_a_wrong_ca_are_told_apart(controlplane: Plane, tmp_path: Path) -> None:
    """401 is Unauthorized; a certificate that is not trusted says which setting to check."""
    async with client(kubeconfig(controlplane, tmp_path, {"token": "wrong"})) as cluster:
        with pytest.raises(Unauthorized):
            await cluster.list(NODES)
    token = {"token": controlplane.admin.token}
    untrusted = kubeconfig(controlplane, tmp_path, token, **{"certificate-authority": None})
    async with client(untrusted, attempts_max=1) as cluster:
        with pytest.raises(Unavailable, match="certificate-authority"):
            await cluster.list(NODES)
    other_name = kubeconfig(controlplane, tmp_path, token, **{"tls-server-name": "other.example"})
    async with client(other_name, attempts_max=1) as cluster:
        with pytest.raises(Unavailable, match="tls-server-name"):
            await cluster.list(NODES)


async def test_a_server_that_is_killed_and_comes_back_costs_time_and_nothing_else(
    control_plane_programs: dict[str, Path],
) -> None:
    """kill -9 of the API server: the cache says it is not in sync, then is level again."""
    with Plane(control_plane_programs, PlaneOptions(controllers=False)) as plane:
        async with client(plane.kubeconfig, reconnect_max_s=0.5) as cluster:
            cache, told = cluster.cache(NODES), Told()
            async with running(cache, told):
                await cluster.create(NODES, {"metadata": {"name": "a"}})
                await until(lambda: told.words == ["synced", "+a"])
                await asyncio.to_thread(plane.kill_apiserver)
                await until(lambda: not cache.synced)
                with pytest.raises(Unavailable, match="no connection"):
                    await cluster.patch(NODES, "a", LABEL)
                await asyncio.to_thread(plane.start_apiserver)
                await cluster.create(NODES, {"metadata": {"name": "b"}})
                await until(lambda: cache.synced and "+b" in told.words)
                assert told.words.count("+a") == told.words.count("+b") == 1
