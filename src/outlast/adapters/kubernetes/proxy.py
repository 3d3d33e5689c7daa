"""Which HTTP proxy a server is reached through: proxy-url of the kubeconfig, else the environment.

As in Go's clients, loopback is never proxied and NO_PROXY may hold names, suffixes, addresses and
networks in CIDR form (clusters are usually excluded by network).
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(server: str, configured: str, env: Mapping[str, str]) -> str:
    """The proxy's URL, or an empty string for a direct connection."""
    if configured:
        return configured
    parts = urlsplit(server)
    host = (parts.hostname or "").lower()
    name = "https_proxy" if parts.scheme == "https" else "http_proxy"
    proxy = env.get(name) or env.get(name.upper()) or ""
    excluded = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if not proxy or _is_loopback(host) or any(_covers(rule.strip(), host) for rule in excluded.split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _covers(rule: str, host: str) -> bool:
    if rule == "*":
        return True
    rule = rule.lower().lstrip("*")
    if not rule:
        return False
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    return host == rule.lstrip(".") or host.endswith("." + rule.lstrip("."))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
