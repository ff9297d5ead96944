"""The border out: stores, where data rests.

`store` is the contract every store keeps, `lake` a Delta table, `sql` a table in SQLite or PostgreSQL,
`maintenance` what is done to a lake from time to time.
"""
