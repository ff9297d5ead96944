"""The console's page `/figures`: turnover at once, and how it turns from preliminary to final."""

from datetime import datetime

from app import app, billing, disputed_receipts, final_turnover, late_receipts, receipts, turnover
from records import Turnover

import headrace as hr

COLORS = {"preliminary": "orange", "final": "green", "late": "purple"}


@app.page("/figures", title="Figures", icon="receipt_long")
def live_figures() -> None:
    figures = hr.ui.rows(turnover, last="12 hours")
    final = hr.ui.rows(final_turnover)

    def state(figure: Turnover) -> str:
        return "late" if figure.late else "final" if figure in final else "preliminary"

    with hr.ui.row():
        hr.ui.counter(receipts, "receipts")
        hr.ui.counter(billing, "lines of the ledger")
        hr.ui.counter(billing, "of them retractions", where="retraction")
        hr.ui.counter(late_receipts, "late receipts")
        hr.ui.counter(disputed_receipts, "disputed receipts")
    with hr.ui.row():
        with hr.ui.card("Turnover per minute, by country"):
            hr.ui.line(figures, x="minute", y="amount", by="country", last="30 minutes")
        with hr.ui.card("Figures by the hour of the sale"):
            hr.ui.bars(figures, x=lambda figure: hour(figure.minute), by=state, keep=12, colors=COLORS)
    with hr.ui.row():
        with hr.ui.card("The latest minutes"):
            hr.ui.table(
                figures,
                columns={
                    "minute": "minute",
                    "country": "country",
                    "sold": "purchases",
                    "amount": "amount",
                    "state": state,
                },
                where=lambda figure: not figure.late,
                sort="minute",
                descending=True,
                color=lambda figure: COLORS[state(figure)],
            )
        with hr.ui.card("The latest that are final"):
            hr.ui.table(
                final,
                columns={"minute": "minute", "country": "country", "sold": "purchases", "amount": "amount"},
                sort="minute",
                descending=True,
                color=lambda figure: COLORS["final"],
            )


def hour(minute: datetime) -> datetime:
    return minute.replace(minute=0, second=0, microsecond=0)
