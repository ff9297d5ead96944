"""The console's page `/alerts`: the windows as they fill, and each alert."""

from app import alerts, app, per_minute, transactions

import headrace as hr

COLORS = {"rapid": "orange", "larger": "purple", "elsewhere": "blue"}


@app.page("/alerts", title="Alerts", icon="notifications")
def charted_alerts() -> None:
    with hr.ui.row():
        hr.ui.counter(transactions, "payments")
        hr.ui.counter(alerts, "alerts")
        hr.ui.counter(alerts, "amount in doubt", value="amount")
    with hr.ui.row():
        with hr.ui.card("Alerts per minute, by rule"):
            hr.ui.bars(per_minute, x="minute", y="alerts", by="rule", keep=30, colors=COLORS)
        with hr.ui.card("Payments per second"):
            hr.ui.line(transactions, last="5 minutes")
    with hr.ui.row():
        with hr.ui.card("Alerts"):
            hr.ui.table(
                alerts,
                columns=["at", "rule", "city", "amount", "customer"],
                keep=15,
                color=lambda alert: COLORS[alert.rule],
            )
        with hr.ui.card("Where"):
            hr.ui.bars(alerts, x="city", by="rule", last="10 minutes", keep=12, colors=COLORS, height="25rem")
