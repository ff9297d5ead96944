"""Three rules on two streams, decided record by record; alerts counted by the minute, and kept in the lake."""

import os

import report
import rules
from generate import Live
from records import Alert, Injected, Location, PerMinute, Transaction

import headrace as hr

app = hr.App("fraud-rules")

transactions = app.stream("transactions", Transaction, key="customer", time="at", retention="1 day")
locations = app.stream("locations", Location, key="customer", time="at", retention="1 day")
alerts = app.stream("alerts", Alert, key="customer", time="at", retention="7 days")
per_minute = app.table("alerts-per-minute", PerMinute, key=("rule", "minute"))
injected = app.stream("injected", Injected, key="customer", time="at", retention="7 days")
lake = hr.lake("fraud-alerts", record=Alert)

app.pipeline(transactions, locations, to=alerts, trigger=hr.realtime(checkpoint="5 minutes"))(rules.judge)
app.pipeline(alerts, to=per_minute, trigger=hr.every("5 seconds"))(report.count_per_minute)
app.pipeline(alerts, to=lake, trigger=hr.every("30 seconds"))(report.keep)

streams = {Transaction: transactions, Location: locations, Injected: injected}
customers = app.service("customers")
town = Live(seed=os.getpid())


@customers.every("10 ms")
async def live() -> None:
    """Customers of our own, so that there is something to see; without them: `--only judge …`."""
    for record in town.due():
        streams[type(record)].publish(record).ignore()


import pages  # noqa: E402, F401 - it needs the streams above
