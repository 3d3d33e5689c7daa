"""A real Kubernetes control plane on loopback, without containers: for tests and benchmarks.

`binaries` finds or builds the programs, `plane` runs them, `kubelet` plays the machines and
`fixtures` hands all of it to pytest.
"""
