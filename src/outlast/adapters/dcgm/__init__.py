"""DCGM through what people have installed: `dcgmi` and dcgm-exporter. Never an engine of our own."""

from outlast.adapters.dcgm.exporter import DcgmExporterSurveyor
from outlast.adapters.dcgm.survey import DcgmSurveyor
from outlast.adapters.dcgm.tool import DcgmTool, DcgmVersion, find_dcgmi

__all__ = ["DcgmExporterSurveyor", "DcgmSurveyor", "DcgmTool", "DcgmVersion", "find_dcgmi"]
