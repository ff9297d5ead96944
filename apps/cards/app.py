"""Is this card used by a thief? A terminal asks, and knows a few milliseconds later.

The detector reads its table and writes the stream. The table is fed from the stream, and so is whatever else
wants to know what cards do: nothing that comes later touches the detector.
"""

from collections import OrderedDict

from records import Activity, Decision, FraudReport, Use
from velocity import judge

import headrace as hr

app = hr.App("cards")

activity = app.stream("card-activity", Activity, key="card", time="at", retention="30 days")
reports = app.stream("fraud-reports", FraudReport, key="card", retention="30 days")
last_use = app.table("last-use", Use, key="card", copies="full")  # or "partitioned": a share in each instance

detector = app.service("detector", tables=[last_use])
recent: OrderedDict[str, Use] = OrderedDict()  # believed here a moment ago: the table may not have heard of it
RECENT = 10_000  # of so many cards; by then it has


@detector.post("/decide")
async def decide(use: Use) -> Decision:
    """Is this use of a card fraud? The answer comes when the log has it."""
    stored = await last_use.get(use.card)
    last = max(filter(None, (stored, recent.get(use.card))), key=lambda each: each.at, default=None)
    decision = judge(last, use)
    if not decision.fraud:
        recent[use.card] = use
        recent.move_to_end(use.card)
        if len(recent) > RECENT:
            recent.popitem(last=False)
    # A terminal that heard no answer asks again: the same id, so that readers count it once.
    await activity.publish(
        Activity(card=use.card, at=use.at, use=use, decision=decision, last=last), id=f"decide|{use.id}"
    )
    return decision


@detector.on(activity, to=last_use)
async def remember(activity: Activity) -> Use | None:
    """The table: each card's last use that was believed. A thief's use says nothing about where its owner is."""
    return None if activity.decision.fraud else activity.use


import pages  # noqa: E402, F401 - it needs the streams above
