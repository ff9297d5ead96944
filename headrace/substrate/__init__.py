"""The substrate: what runs below the log, and keeps it running.

Read first `site.py` (up, down, status); then `broker.py` (what an embedded site is), `supervisor.py` and
`process.py` (how processes are kept), `java.py` and `jars.py` (what they are made of), `aot.py` (why they start
quickly), `doctor.py` (what may be wrong). For users: docs/substrate.md.
"""
