"""Network devices: firmware that fell silent, commands that got no answer, resets, cables, links.

Formats of mlx5_core (health.c, cmd.c, events.c), of efa and ena (Amazon's drivers up to efa 3.1.0, both
generations of their words) and of net/sched. A link that is down is for the link states to judge.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.health.sources.lines import BDF, START, Line, rule

RDMA_DRIVERS: Final = frozenset({"mlx5_core", "mlx4_core", "efa", "bnxt_en", "bnxt_re", "irdma", "hfi1"})

_MLX5: Final = re.compile(
    rf"{START}mlx5_core(?: (?P<address>{BDF}))?(?: (?P<name>[\w.@-]{{1,32}}))?: "
    r"(?:\w{1,64}:\d{1,6}:?(?:\(pid \d{1,10}\))?: )?(?P<said>.{1,256})"
)
_MLX5_SAYS: Final = (
    ("recovered", re.compile(r".{0,80}?(?:health recovery succeeded|[Rr]ecovered (?:after|from) )")),
    (
        "failed",
        re.compile(
            r".{0,120}?(?:health recovery failed|recovery flow aborted|PCI reads still not working"
            r"|[Uu]nrecoverable hardware error|HW fatal error|irisc not responding"
            r"|Firmware over \d{1,10} MS in (?:pre-)?initializing state"
            r"|mlx5_(?:init_one|load_one|function_setup)\w{0,16} failed|[Ii]nit_one failed)"
        ),
    ),
    ("overheated", re.compile(r".{0,160}?High temp(?:e?rature)\b", re.IGNORECASE)),
    (
        "unhealthy",
        re.compile(
            r".{0,80}?(?:device's health compromised|health poll failed|Fatal error \d{1,4} detected"
            r"|Health issue observed"
            r"|synd 0x[1-9a-f]\w{0,3}: )"
        ),
    ),
    (
        "command-timeout",
        re.compile(
            r".{0,120}?(?:timeout\. Will cause a leak of a command resource|No done completion"
            r"|canceled on out of queue timeout)"
        ),
    ),
    ("tx-stalled", re.compile(r"[TR]X timeout\b")),
    ("slot-power", re.compile(r"Detected insufficient power on the PCIe slot")),
    ("cable", re.compile(r"Port module event(?:\[error\]: |: module \d{1,4}, Cable unplugged)")),
    ("link-down", re.compile(r"(?:Port: \d{1,3} )?Link (?:[Dd]own|DOWN)\b")),
    (
        "command-error",
        re.compile(r"[A-Z][A-Z0-9_]{1,48}\(0x[0-9a-fA-F]{1,6}\) op_mod\(0x[0-9a-fA-F]{1,6}\) failed"),
    ),
)
_EFA: Final = re.compile(
    rf"{START}(?:infiniband (?P<name>rdmap\w{{1,24}}|efa_?\d{{1,4}})"
    rf"|efa(?: (?P<address>{BDF}))?(?: [^\s:]{{1,32}})?): (?P<said>.{{1,256}})"
)
_NOT_READY: Final = (
    r"Device isn't ready, (?:abort com init|can't reset device)|Reset indication didn't turn o(?:n|ff)\b"
)
_EFA_SAYS: Final = (
    (
        "failed",
        re.compile(
            rf"(?:{_NOT_READY}|EFA device init failed|Failed to init readless MMIO|Admin queue is closed"
            r"|Wait for completion \(polling\) timeout|The device didn't send any completion for admin cmd)"
        ),
    ),
    (
        "command-timeout",
        re.compile(r"(?:The device sent a completion but the driver didn't|Reading reg\w* timed out)"),
    ),
    ("command-error", re.compile(r"Failed to (?:process|submit) command")),
)
_ENA: Final = re.compile(
    rf"{START}ena(?: (?P<address>{BDF}))?(?: (?P<name>[^:]{{1,48}}))?: (?P<said>.{{1,256}})"
)
_ENA_SAYS: Final = (
    (
        "failed",
        re.compile(
            rf"(?:{_NOT_READY}|Reset attempt failed|Device reset failed|Restore attempt failed"
            r"|ENA device init failed|Can ?not reset (?:the )?device|FW isn't responsive)"
        ),
    ),
    (
        "command-timeout",
        re.compile(
            r"(?:The (?:ena )?device didn't send (?:a|any) completion|Wait for completion \(polling\) timeout"
            r"|Reg read(?:32)? timeout|The ena device sent a completion but)"
        ),
    ),
    ("keep-alive", re.compile(r"Keep alive watchdog timeout")),
    (
        "tx-lost",
        re.compile(r"(?:\[1/2\] )?(?:The number of )?[Ll]ost (?:tx|TX) completions (?:is|are) above"),
    ),
    (
        "tx-late",
        re.compile(
            r"(?:Found a T[xX] that wasn't completed on time|TX hasn't completed, qid"
            r"|\[1/2\] \d{1,9} new missed TX completions"
            r"|TX q \d{1,5} is paused|Potential MSIX issue)"
        ),
    ),
    (
        "reset",
        re.compile(
            r"(?:Trigger reset is on|Resetting the device|The device has detected an unhealthy state)"
        ),
    ),
)
_WATCHDOG: Final = re.compile(
    rf"{START}(?:(?P<driver>[\w.-]{{1,32}}) (?P<address>{BDF}|[\w.-]{{1,32}}) (?P<name>[\w.@-]{{1,32}}): "
    r"NETDEV WATCHDOG: |NETDEV WATCHDOG: (?P<old>[\w.@-]{1,32}) \((?P<module>[\w-]{1,32})\): )"
    r".{0,32}?transmit queue \d{1,6} timed out"
)
_CARRIER: Final = re.compile(
    rf"{START}(?:(?P<driver>[\w.-]{{1,32}}) (?P<address>{BDF})(?: (?P<name>[\w.@-]{{1,32}}))?"
    r"|(?P<bare>[\w.@-]{1,32})): (?:\w{1,16}: \w{1,16} )?(?:Lost carrier|(?:NIC )?[Ll]ink is [Dd]own)\b"
)
_BOND_MEMBER: Final = re.compile(
    rf"{START}(?:bonding: )?(?P<bond>[\w.-]{{1,32}}): (?:\(slave (?P<name>[\w.-]{{1,32}})\): )?"
    r"link status definitely down"
)
_BOND: Final = re.compile(
    rf"{START}(?:bonding: )?(?P<bond>[\w.-]{{1,32}}): now running without any active interface"
)
_VIRTUAL: Final = re.compile(
    r"(?:veth|cali|cilium|lxc|docker|br-|virbr|cni|flannel|vxlan|tunl?\d|tap|lo\b|genev|wg|dummy|ipvl|macvl|vnet"
    r"|kube|azv|eni[0-9a-f]{8}|gke|nodelocal|ovs|antrea|weave|podman|bridge|sit|gre|erspan|ip6)"
)
_RDMA_NAME: Final = re.compile(
    r"rdmap?(?:P(?P<domain>\d{1,5}))?p?(?P<bus>\d{1,3})s(?P<slot>\d{1,2})(?:f(?P<function>\d))?"
)


def address_of(name: str) -> str:
    """The PCI address in a name that udev gave (rdmap0s6, decimal), or nothing."""
    found = _RDMA_NAME.fullmatch(name)
    if found is None or int(found["bus"]) > 255 or int(found["slot"]) > 31:
        return ""
    domain, function = int(found["domain"] or 0), int(found["function"] or 0)
    return f"{domain:04x}:{int(found['bus']):02x}:{int(found['slot']):02x}.{function}"


def _line(
    kind: str, start: int, driver: str, address: str, name: str = "", *, rdma: bool | None = None
) -> Line:
    where = _normal(address) or name
    device = f"{driver} {where}".strip() if where else driver
    carries = driver in RDMA_DRIVERS if rdma is None else rdma
    return Line(kind=f"nic/{kind}", start=start, device=device, rdma=carries, subject=name)


def _normal(address: str) -> str:
    domain, colon, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if colon else ""


def mlx5(text: str) -> Line | None:
    """NVIDIA ConnectX."""
    found = _MLX5.search(text)
    if found is None:
        return None
    for kind, pattern in _MLX5_SAYS:
        if pattern.match(found["said"]):
            return _line(kind, found.start(), "mlx5_core", found["address"] or "", found["name"] or "")
    return None


def efa(text: str) -> Line | None:
    """Amazon's EFA: an unanswered command closes its queue until the driver starts again."""
    found = _EFA.search(text)
    if found is None:
        return None
    address = found["address"] or address_of(found["name"] or "")
    for kind, pattern in _EFA_SAYS:
        if pattern.match(found["said"]):
            return _line(kind, found.start(), "efa", address, found["name"] or "")
    return None


def ena(text: str) -> Line | None:
    """Amazon's Elastic Network Adapter: its resets are part of its life."""
    found = _ENA.search(text)
    if found is None:
        return None
    for kind, pattern in _ENA_SAYS:
        if pattern.match(found["said"]):
            name = (found["name"] or "").split(" ")[0].strip("(")
            return _line(kind, found.start(), "ena", found["address"] or "", name)
    return None


def watchdog(text: str) -> Line | None:
    """A transmit queue that did not move."""
    found = _WATCHDOG.search(text)
    if found is None:
        return None
    name = found["name"] or found["old"]
    address = found["address"] or ""
    return _line("tx-stalled", found.start(), found["driver"] or found["module"], address, name)


def carrier(text: str) -> Line | None:
    """A link of a real interface that went down."""
    if found := _BOND.search(text):
        return Line(kind="nic/bond-down", start=found.start(), device=f"bond {found['bond']}", rdma=False)
    if found := _BOND_MEMBER.search(text):
        return _line("link-down", found.start(), "bond", "", found["name"] or found["bond"], rdma=False)
    found = _CARRIER.search(text)
    if found is None:
        return None
    name = found["name"] or found["bare"] or ""
    if found["driver"]:
        return _line("link-down", found.start(), found["driver"], found["address"], name)
    if _VIRTUAL.match(name) or name.endswith(("networkd", "NetworkManager")):
        return None
    return _line(
        "link-down", found.start(), "interface", "", name, rdma=name.startswith(("ib", "rdma", "roce"))
    )


RULES: Final = (
    rule("mlx5", "mlx5_core mlx5_core:", mlx5),
    rule("NETDEV WATCHDOG", "NETDEV", watchdog),
    rule("infiniband ", "infiniband", efa),
    rule("efa ", "efa", efa),
    rule("ena ", "ena", ena),
    rule("Lost carrier", "carrier", carrier),
    rule("ink is ", "Down down Down, down,", carrier),
    rule("definitely down", "definitely", carrier),
    rule("active interface", "interface!", carrier),
)
