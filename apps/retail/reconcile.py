"""Compares the figures of every minute: added up by hand, counted live, booked in the ledger, of the batch run.

By hand means a few lines of plain Python over the log. Let the batch run come before:
`headrace backfill apps/retail count_minutes --into batch-turnover`. Exits with 1 if a cent is amiss.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from app import app, batch_turnover, billing, final_turnover, receipts, turnover, zip_turnover
from records import Entry, Receipt, Turnover
from rich.console import Console
from rich.table import Table

import headrace as hr

Key = tuple[str, datetime, bool]  # country, minute, late
Figures = dict[Key, tuple[int, Decimal]]


def added_up(messages: Iterable[hr.Message[Receipt]]) -> Figures:
    """The rules once more, in a few lines that anybody can check."""
    sums: Figures = defaultdict(lambda: (0, Decimal(0)))
    known = set()
    for message in messages:
        receipt, age = message.record, message.time - message.record.at
        if timedelta(minutes=-1) <= age <= timedelta(days=2) and receipt.id not in known:
            known.add(receipt.id)
            minute = receipt.at.astimezone(UTC).replace(second=0, microsecond=0)
            key = receipt.country, minute, age > timedelta(hours=6)
            sums[key] = (sums[key][0] + 1, sums[key][1] + receipt.amount)
    return dict(sums)


def latest(rows: Iterable[Turnover]) -> Figures:
    return {(row.country, row.minute, row.late): (row.purchases, row.amount) for row in rows}


def ledger(messages: Iterable[hr.Message[Entry]]) -> Figures:
    """The sum of all entries. After a crash an entry may be there twice, with the same id: it counts once."""
    sums: Figures = defaultdict(lambda: (0, Decimal(0)))
    for entry in {message.id: message.record for message in messages}.values():
        key, sign = (entry.country, entry.minute, entry.late), -1 if entry.retraction else 1
        sums[key] = (sums[key][0] + sign * entry.purchases, sums[key][1] + sign * entry.amount)
    return dict(sums)


def figures() -> dict[str, Figures]:
    """All that is in the log at this moment, by the way in which it was computed."""
    with app.consumer(receipts, until="end") as messages:
        by_hand = added_up(messages)
    with app.consumer(turnover, until="end") as messages:
        live = latest(message.record for message in messages)
    with app.consumer(billing, until="end") as messages:
        booked = ledger(messages)
    return {"by hand": by_hand, "live": live, "ledger": booked, "batch": latest(batch_turnover.latest().values())}


def main() -> int:
    found = figures()
    by_hand = found["by hand"]
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("country")
    for name in ("purchases", *found):
        table.add_column(name, justify="right")
    for country in [*sorted({key[0] for key in by_hand}), "all"]:
        sums = [[figure for key, figure in each.items() if country in (key[0], "all")] for each in found.values()]
        amounts = (f"{sum((amount for _, amount in each), Decimal(0)):,.2f}" for each in sums)
        table.add_row(country, f"{sum(purchases for purchases, _ in sums[0]):,}", *amounts)
    console = Console(highlight=False)
    console.print(table)

    final = latest(final_turnover.latest().values())
    wrong = {f"final {key}" for key, figure in final.items() if by_hand.get(key) != figure}
    for name, each in found.items():
        wrong |= {f"{name} {key}" for key in by_hand.keys() | each.keys() if by_hand.get(key) != each.get(key)}
    zips = sum((row.amount for row in zip_turnover.latest().values()), Decimal(0))
    if zips != sum((amount for _, amount in by_hand.values()), Decimal(0)):
        wrong.add(f"zip codes: {zips:,.2f}")
    console.print(
        f"{len(by_hand):,} minutes of countries, {len(final):,} of them final; {len(wrong):,} differences."
    )
    for text in sorted(wrong)[:10]:
        console.print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
