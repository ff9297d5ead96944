"""The process that holds Spark: runs an app's pipelines and trainings, and says what happens, one JSON line each.

Started and supervised by `headrace run`. It ends by itself when all its pipelines have finished, and with an
error, in its last line, when one is defined wrongly. What it looks like from outside is in `status.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import settings as _settings
from headrace.cli._told import say, say_error
from headrace.errors import HeadraceError, SubstrateError
from headrace.pipelines.session import launch, start_session, stop_session, warm_up, why_ended
from headrace.settings import Settings
from headrace.substrate._files import write_atomically

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.models.training import Training
    from headrace.pipelines.definition import Pipeline

STATUS = "status.json"
STATUS_S = 1.0
DEATH_S = 5.0


def main(arguments: str) -> int:
    """Run the pipelines named in `arguments`, a JSON object that `headrace run` wrote."""
    asked = json.loads(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = _settings.load(Path(asked["root"]))
        launch(settings, name=asked["name"], realtime=asked["realtime"])
        from headrace.cli._load import load_app  # what takes its time, now that Java takes its own

        app = load_app(Path(asked["app"]))
        app.use(settings, asked["site"])
        run(app, settings, asked, stop)
    except HeadraceError as error:
        stop_session(0.0)
        return say_error(error)
    return 0


def run(app: App, settings: Settings, asked: dict[str, Any], stop: threading.Event) -> None:
    """Start Spark and the pipelines, and keep at it until `stop` or until all have finished."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    from headrace.pipelines.run import PipelineRunner, slots_needed

    chosen: Sequence[Pipeline] = [app.pipelines[name] for name in asked["pipelines"]]
    partitions = app.site.admin().partition_counts()
    shuffle = int(settings.spark.options.get("spark.sql.shuffle.partitions", "2"))
    trainings = [app.trainings[name] for name in asked.get("trainings", ())]
    slots = slots_needed(chosen, partitions, shuffle, os.cpu_count() or 2)
    realtime = bool(asked["realtime"])
    spark = start_session(settings, name=asked["name"], slots=slots, realtime=realtime)
    runner = PipelineRunner(
        spark,
        chosen,
        app=app.name,
        site=app.site,
        settings=settings,
        on_event=lambda event: say(event.kind, pipeline=event.pipeline, text=event.text),
    )
    trainer = _trainer(spark, app, settings, trainings) if trainings else None
    folder = settings.state / "apps" / app.name
    written_at = 0.0

    def until() -> bool:
        nonlocal written_at
        if not stop.is_set() and time.monotonic() - written_at > STATUS_S:
            written_at = time.monotonic()
            _write_status(folder, runner.status())
            if (ended := why_ended()) is not None:  # pipelines that are paused would not notice
                raise ended
        return stop.is_set()

    try:
        if realtime:
            threading.Thread(target=_warm_up, args=(spark,), name="warm-up", daemon=True).start()
        runner.prepare(fresh=asked["fresh"], start=asked["start"])
        runner.start()
        if trainer is not None:
            trainer.start()
        _write_status(folder, runner.status())
        say("ready")
        runner.run(until)
        while trainer is not None and why_ended() is None and not until():
            stop.wait(STATUS_S)
        if trainer is not None and (ended := why_ended()) is not None:
            raise ended
    except (Py4JNetworkError, OSError) as error:  # Java is gone, or going
        deadline = time.monotonic() + DEATH_S
        while why_ended() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        raise why_ended() or error from None
    finally:
        if trainer is not None:
            trainer.stop()
        runner.stop()
        _write_status(folder, runner.status())
        app.close()
        stop_session()
    failed = [each for each in runner.status() if each["state"] == "failed"]
    if failed:
        raise HeadraceError(failed[0]["problem"], remedy="Correct it, then run again.")
    if not stop.is_set():
        say("done")


def _trainer(spark: Any, app: App, settings: Settings, trainings: Sequence[Training]) -> Any:
    from headrace.models.trainer import Trainer

    return Trainer(
        spark,
        trainings,
        site=app.site,
        settings=settings,
        on_event=lambda kind, name, text: say(kind, training=name, text=text),
    )


def _warm_up(spark: Any) -> None:
    """Beside the pipelines' own start, which does not wait for it; a failure of it is not worth one of theirs."""
    with contextlib.suppress(Exception):
        warm_up(spark)


def _write_status(folder: Path, pipelines: list[dict[str, Any]]) -> None:
    state = {"pid": os.getpid(), "at": time.time(), "pipelines": pipelines}
    with contextlib.suppress(OSError, SubstrateError):  # a full disk must not end the pipelines
        write_atomically(folder / STATUS, json.dumps(state).encode(), durable=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
