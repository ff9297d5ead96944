"""When a receipt counts: by its own time `at`, and by `_time`, when it was sent. Both are in the log for good.

::

          at − 1 minute                  at + 6 hours                 at + 2 days
    ────────────┼──────────────┼───────────────┼─────────────────────────────┼────────────────────► `_time`
     disputed:  │      on time: its minute     │  late: its minute is final, │  disputed: a person
     its clock  │      grows, and is           │  so it is booked as an      │  decides, nothing
     is wrong   │      preliminary             │  adjustment of its own      │  is booked
"""

from datetime import timedelta

ON_TIME = "at BETWEEN _time - INTERVAL 6 HOURS AND _time + INTERVAL 1 MINUTE"
BOOKED = "at BETWEEN _time - INTERVAL 2 DAYS AND _time + INTERVAL 1 MINUTE"
LATE = "at < _time - INTERVAL 6 HOURS"

# Spark's watermark follows the latest `at`. It allows three minutes more than the rules, so that it never drops
# what they accept: one for clocks that are ahead, two for a record that a producer could not deliver at once.
MINUTES_OPEN = timedelta(hours=6, minutes=3)
BOOKS_OPEN = timedelta(days=2, minutes=3)

ZONES = {
    "DE": "Europe/Berlin",
    "FR": "Europe/Paris",
    "GB": "Europe/London",
    "IN": "Asia/Kolkata",
    "JP": "Asia/Tokyo",
}
