"""Says which version of the model found an anomaly, what it was trained on, and what it found."""

import argparse

import msgspec
import numpy as np
from app import anomalies, app
from records import FEATURES, Anomaly

import headrace as hr


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("reading", nargs="?", help="the reading's id; else the latest anomaly")
    wanted = options.parse_args().reading
    with app.consumer(anomalies, until="end") as messages:
        found = [message for message in messages if wanted in (None, message.record.reading.id)]
    if not found:
        raise SystemExit(f"There is no anomaly {wanted or 'yet'}.")
    message = max(found, key=lambda each: each.time)
    versions = app.streams["models"].latest()
    print(explain(message, versions[f"health|{message.record.version}"]))


def explain(message: hr.Message[Anomaly], version: hr.models.ModelVersion) -> str:
    anomaly, by = message.record, message.headers
    where = "" if "ce_model" in by else " on the device"
    lines = [
        f"Reading {anomaly.reading.id} of device {anomaly.device} at {anomaly.at:%H:%M:%S} has the score "
        f"{anomaly.score:.1f}, says version {anomaly.version} of health{where}.",
        f"That was published at {version.at:%H:%M:%S} by {version.by}"
        + (f", trained on {version.trained.rows:,} rows of the lake.\n" if version.trained else ".\n"),
        "              measured  expected     off by",
    ]
    for name, measured, expected, deviations in reasons(anomaly, version):
        lines.append(f"{name:12}{measured:10.1f}{expected:10.1f}{deviations:+8.1f} std")
    return "\n".join(lines)


def reasons(anomaly: Anomaly, version: hr.models.ModelVersion) -> list[tuple[str, float, float, float]]:
    """Each feature as measured, as the others make expect it, and how far off that is; the farthest first."""
    parameters = msgspec.json.decode(version.document or "")["parameters"]
    precision = np.linalg.inv(np.array(parameters["covariance"]))
    measured = np.array([getattr(anomaly.reading, name) for name in FEATURES])
    pull = precision @ (measured - np.array(parameters["mean"]))
    own = np.diag(precision)
    rows = zip(FEATURES, measured, measured - pull / own, pull / np.sqrt(own), strict=True)
    return sorted(rows, key=lambda row: -abs(row[3]))


if __name__ == "__main__":
    main()
