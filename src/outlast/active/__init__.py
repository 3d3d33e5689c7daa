"""Active checks: what is tested at which level, and the tests themselves, on a small Device protocol.

`plan` and the tests are pure; workers, CUDA and torch are in adapters/active, verdicts in
health/checks/active.
"""
