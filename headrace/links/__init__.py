"""Links: streams copied between sites, both ways, in any shape. docs/links.md is the user's page.

Read `state.py` for what is kept in the log, `marks.py` for how it is known what has arrived, `inbound.py` for the
process that copies, `failover.py` for moving readers from one site to another.
"""
