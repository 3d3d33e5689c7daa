"""Separate processes against a real Kubernetes control plane."""
