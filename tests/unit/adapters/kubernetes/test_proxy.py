"""Which proxy is used, and when none."""

import pytest

from outlast.adapters.kubernetes.proxy import proxy_for

ENV = {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "10.0.0.0/8, .internal,exact.example,*.wild.example"}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://k8s.example:6443", "http://proxy:3128"),
        ("http://k8s.example", ""),
        ("https://10.96.0.1:443", ""),
        ("https://11.0.0.1:443", "http://proxy:3128"),
        ("https://api.internal", ""),
        ("https://exact.example", ""),
        ("https://sub.exact.example", ""),
        ("https://a.wild.example", ""),
        ("https://127.0.0.1:6443", ""),
        ("https://localhost:6443", ""),
        ("https://[::1]:6443", ""),
    ],
)
def test_the_environment_decides_as_in_other_clients(server: str, expected: str) -> None:
    """NO_PROXY holds names, suffixes and networks; loopback is never proxied."""
    assert proxy_for(server, "", ENV) == expected


def test_the_kubeconfig_wins() -> None:
    """proxy-url is explicit."""
    assert proxy_for("https://10.0.0.1", "socks5://p", ENV) == "socks5://p"
