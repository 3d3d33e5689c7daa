"""DCGM through what people have installed: `dcgmi` and dcgm-exporter. Never an engine of our own.

`find.find_dcgmi` finds the tool, `tool.DcgmTool` runs it, `survey` and `exporter` are polled sources. Import
the part that is used: the agent loads none of it on a machine without DCGM.
"""
