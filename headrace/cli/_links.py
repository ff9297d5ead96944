"""The process that copies into one site: started and supervised by `headrace link up`."""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from pathlib import Path

from headrace import settings as _settings
from headrace.cli._told import say, say_error
from headrace.errors import HeadraceError
from headrace.links.inbound import Inbound, flows_into

# How long a thread that copies may keep the one waiting that hears the log's answers.
SWITCH_S = 0.001


def main(arguments: str) -> int:
    """Copy into the site named in `arguments`, a JSON object that `headrace link up` wrote."""
    asked = json.loads(arguments)
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # what is loaded stays: no need to look through it again and again while records wait
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = _settings.load(Path(asked["root"]))
        target = asked["target"]

        def heard(kind: str, site: str, text: str) -> None:
            if kind == "ready":
                links = [link.name for link, _ in flows_into(settings, target, asked["links"])]
                say("copying", target=site, links=links)
                say("ready")
            else:
                say(kind, target=site, text=text)

        Inbound(settings, target, links=asked["links"], on_event=heard).run(stop)
    except HeadraceError as error:
        return say_error(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
