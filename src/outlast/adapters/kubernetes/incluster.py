"""Access from inside a pod: the service address and the projected service account.

The token is rotated by the kubelet, so it is read again each minute and after a 401.
"""

from collections.abc import Mapping
from pathlib import Path

from outlast.adapters.kubernetes.access import Access, Trust
from outlast.adapters.kubernetes.credentials import FileCredential, KubeconfigError, SecretFiles, read_secret

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def is_in_cluster(env: Mapping[str, str]) -> bool:
    """Whether the environment is that of a pod."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def in_cluster_access(env: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """Access as the pod's service account. Raises KubeconfigError."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT") or "443"
    token, ca, namespace = folder / "token", folder / "ca.crt", folder / "namespace"
    if not token.exists():
        raise KubeconfigError(
            f"This pod has no service account token at {token}; "
            "set automountServiceAccountToken or use a kubeconfig."
        )
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        trust=Trust(
            ca_pem=read_secret(ca, "certificate authority").decode("ascii", "replace"), origin=f"{ca}"
        ),
        credentials=FileCredential(SecretFiles(token=token)),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        origin="KUBERNETES_SERVICE_HOST",
    )
