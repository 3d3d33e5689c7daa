"""outlast: GPU reliability for Kubernetes.

Importing this package imports nothing else; each room is imported by who needs it.
"""

__version__ = "0.1.0"
