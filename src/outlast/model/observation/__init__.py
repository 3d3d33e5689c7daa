"""What the sources of a node deliver: readings, not yet judged; one file a source.

A source that fails delivers its failure as a reading too, so that "the tool hung" is never mistaken
for "the GPU is bad" or, worse, for "nothing to report".
"""

from outlast.model.observation.base import CounterReading, Reading, Survey
from outlast.model.observation.gpu import GpuReading, GpuSurvey, SurveyProblem
from outlast.model.observation.kernel import (
    KERNEL_FACILITY,
    KERNEL_LINE_BYTES_MAX,
    KERNEL_PROPERTIES_MAX,
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    KernelRecord,
)
from outlast.model.observation.pci import MachineFacts, PciDevice, PciSurvey

__all__ = [
    "KERNEL_FACILITY",
    "KERNEL_LINE_BYTES_MAX",
    "KERNEL_PROPERTIES_MAX",
    "CounterReading",
    "GpuReading",
    "GpuSurvey",
    "KernelLogCaughtUp",
    "KernelLogGap",
    "KernelLogLost",
    "KernelRecord",
    "MachineFacts",
    "PciDevice",
    "PciSurvey",
    "Reading",
    "Survey",
    "SurveyProblem",
]
