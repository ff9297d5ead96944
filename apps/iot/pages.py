"""The console's page `/fleet`: every device as it is now, those that are not as usual first, and the model."""

from datetime import UTC, datetime, timedelta

from app import anomalies, app, recovery, telemetry
from records import Reading

import headrace as hr

RECENTLY = timedelta(seconds=15)


@app.page("/fleet", title="Fleet", icon="memory")
def live_fleet() -> None:
    devices = hr.ui.rows(telemetry, last="1 minute")
    suspects = hr.ui.rows(anomalies, last="1 minute")

    def score(reading: Reading) -> float:
        """That of the device's last anomaly, if it is a recent one."""
        found = suspects.get(reading)
        return found.score if found is not None and datetime.now(UTC) - found.at < RECENTLY else 0.0

    with hr.ui.row():
        hr.ui.counter(telemetry, "readings")
        hr.ui.counter(anomalies, "anomalies")
        hr.ui.counter(recovery, "recoveries", where=lambda step: step.number == 1)
    with hr.ui.card("Anomalies: how far from usual, by the version of the model that says so"):
        hr.ui.line(anomalies, y="score", by=lambda each: f"version {each.version}", last="5 minutes")
    with hr.ui.card("Devices; red: an anomaly in the last seconds"):
        hr.ui.table(
            devices,
            columns={
                "device": "device",
                "score": lambda reading: score(reading) or None,
                "°C": "temperature",
                "cpu %": "cpu",
                "memory %": "memory",
                "disk MB/s": "disk_io",
                "disk ms": "disk_latency",
                "network MB/s": "network_io",
            },
            sort=lambda reading: (-score(reading), reading.device),
            color=lambda reading: "red" if score(reading) else None,
            keep=12,
        )
    with hr.ui.row():
        with hr.ui.card("What was done"):
            hr.ui.table(recovery, columns=["at", "device", "action"], keep=8)
        with hr.ui.card("Versions of the model"):
            hr.ui.table(
                app.streams["models"],
                columns={
                    "version": "version",
                    "by": "by",
                    "at": "at",
                    "readings": lambda version: version.trained.rows if version.trained else None,
                    "usual": lambda version: version.metrics.get("usual"),
                },
                sort="version",
                descending=True,
                keep=8,
            )
