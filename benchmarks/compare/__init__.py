"""Headrace next to what a user would pick instead, on one broker and the same data: `python -m compare --help`.

::

    __main__.py   what is run, in which order, and what comes out
    harness.py    systems, jobs, processes with what they use, rounds that take turns
    log.py        the broker that all share: streams, filling, ends
    probe.py      sends on schedule and reads what comes out, in a process of its own
    report.py     the tables, on the terminal and in docs/benchmarks.md
    systems/      one module a system: how it is installed, how a job of it is started
    jobs/         what the systems run: the same work, written as each one's documentation advises
    workloads/    one module a workload: its data, its trials, its check of the results
"""
