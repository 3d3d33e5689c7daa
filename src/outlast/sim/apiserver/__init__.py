"""A Kubernetes API server in one Python process, for the demo, the simulator and fast tests.

It promises what a kube-apiserver promises to a client (see docs/mechanisms/embedded-api-server.md);
one contract suite runs against both.
"""

from outlast.sim.apiserver.errors import ApiError
from outlast.sim.apiserver.faults import Fault, Faults, Match
from outlast.sim.apiserver.server import ApiServer
from outlast.sim.apiserver.store import Store, Writer

__all__ = ["ApiError", "ApiServer", "Fault", "Faults", "Match", "Store", "Writer"]
