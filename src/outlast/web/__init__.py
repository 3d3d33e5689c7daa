"""The dashboard: pure views over API objects, served live."""
