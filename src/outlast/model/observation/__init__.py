"""What the sources of a node deliver: readings, not yet judged; one file a source.

A source that fails delivers its failure as a reading too, so that "the tool hung" is never mistaken
for "the GPU is bad" or, worse, for "nothing to report".
"""

from outlast.model.observation.base import CounterReading, Reading, Survey
from outlast.model.observation.gpu import GpuDetail, GpuReading, GpuSurvey, SurveyProblem
from outlast.model.observation.host import DiskController, Filesystem, Fill, HostSurvey
from outlast.model.observation.kernel import (
    KERNEL_FACILITY,
    KERNEL_LINE_BYTES_MAX,
    KERNEL_PROPERTIES_MAX,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
)
from outlast.model.observation.pci import AerTotals, MachineFacts, PciDevice, PciPort, PciSurvey
from outlast.model.observation.processes import ProcessOwner, ProcessSurvey, StuckTask, Witness
from outlast.model.observation.rdma import (
    LinkLayer,
    NetworkInterface,
    RdmaDevice,
    RdmaPort,
    RdmaProblem,
    RdmaSurvey,
)

__all__ = [
    "KERNEL_FACILITY",
    "KERNEL_LINE_BYTES_MAX",
    "KERNEL_PROPERTIES_MAX",
    "AerTotals",
    "CounterReading",
    "DiskController",
    "Filesystem",
    "Fill",
    "GpuDetail",
    "GpuReading",
    "GpuSurvey",
    "HostSurvey",
    "KernelLogCaughtUp",
    "KernelLogGap",
    "KernelLogLost",
    "KernelRecord",
    "LinkLayer",
    "MachineFacts",
    "NetworkInterface",
    "PciDevice",
    "PciPort",
    "PciSurvey",
    "ProcessOwner",
    "ProcessSurvey",
    "RdmaDevice",
    "RdmaPort",
    "RdmaProblem",
    "RdmaSurvey",
    "Reading",
    "StuckTask",
    "Survey",
    "SurveyProblem",
    "Witness",
]
