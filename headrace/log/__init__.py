"""The backbone: streams in a durable log, and the clients that write, read and manage them.

`stream` defines, `site` opens, `producer` writes, `consumer` reads, `admin`, `groups` and `schemas` manage,
`deadletter` keeps what failed, `reporter` publishes metrics and exceptions.
"""
