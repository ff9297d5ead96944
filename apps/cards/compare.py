"""The two versions of the detector, side by side: `python apps/cards/compare.py`.

Reads all opinions and all reports of frauds that there are, and says who found what.
"""

from collections import Counter

from app import app, reports
from detector_v2 import Opinion, opinions
from records import FraudReport


def compare(given: list[Opinion], reported: set[str]) -> str:
    """What each version found of the frauds, what else it took for one, and where they differ."""
    seen = Counter((each.version_1, each.version_2, each.use in reported) for each in given)
    frauds = sum(count for (_, _, fraud), count in seen.items() if fraud)
    lines = ["            frauds found          false alarms"]
    for number in (0, 1):
        found = sum(count for key, count in seen.items() if key[number] and key[2])
        alarms = sum(count for key, count in seen.items() if key[number] and not key[2])
        share = f"{found / max(frauds, 1):.1%}"
        lines.append(f"version {number + 1}   {f'{found:,} of {frauds:,}':<12} {share:>6}   {alarms:,}")
    lines.append("")
    for first, second, name in ((True, True, "both"), (True, False, "only 1"), (False, True, "only 2")):
        right, wrong = seen[first, second, True], seen[first, second, False]
        lines.append(f"{name + ' said fraud':<18} {right + wrong:>6,}, rightly in {right:,}")
    lines.append(f"in all             {len(given):>6,} uses")
    return "\n".join(lines)


def main() -> None:
    given: dict[str, Opinion] = {}
    reported: set[str] = set()
    with app.consumer(opinions, reports, until="end") as messages:
        for message in messages:
            record = message.record
            if isinstance(record, FraudReport):
                reported.add(record.use)
            else:
                given[record.use] = record
    print(compare(list(given.values()), reported))


if __name__ == "__main__":
    main()
