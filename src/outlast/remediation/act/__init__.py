"""The only writer: carries out what was decided, each act idempotent, re-checked and fenced.

docs/mechanisms/remediation.md says which request each act is and what its answers mean.
"""

from outlast.remediation.act.performer import Acted, Fenced, Performer, Result
from outlast.remediation.act.repair import RepairOptions

__all__ = ["Acted", "Fenced", "Performer", "RepairOptions", "Result"]
