"""A real Kubernetes control plane on loopback, without containers: for tests and benchmarks.

`binaries` finds or builds the programs, `plane` runs them, `kubelet` plays the machines,
`installation` applies outlast's manifests and hands out the tokens its pods have, and `fixtures` gives
all of it to pytest: `controlplane`, `namespace`, `installation`, `kubectl`. Elsewhere:

    with Plane(binaries.obtain()) as plane:
        async with Kubelets(plane.admin) as kubelets:
            await kubelets.add_many([f"node-{i}" for i in range(500)], padded=True)
"""
