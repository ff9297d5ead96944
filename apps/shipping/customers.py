"""What a customer sees, by a token that is for the customer's containers only: `customers.py --token …`."""

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect


class Door(NamedTuple):
    """A way to ask, how it was answered, and what was seen."""

    what: str
    status: int
    seen: Any = None


def ask(address: str, token: str, path: str) -> tuple[int, Any, dict[str, str]]:
    request = Request(f"{address}{path}", headers={"authorization": f"Bearer {token}"})  # noqa: S310
    try:
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - http, and our own
            return answer.status, json.load(answer), dict(answer.headers)
    except HTTPError as error:
        return error.code, json.loads(error.read() or b"{}"), {}


def follow(address: str, token: str, path: str) -> tuple[int, Any]:
    """The first record that a WebSocket gives."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        with connect(
            f"{address.replace('http', 'ws', 1)}{path}", additional_headers=headers, close_timeout=1
        ) as socket:
            return 200, json.loads(socket.recv(timeout=30))["record"]
    except InvalidStatus as error:
        return error.response.status_code, None


def doors(address: str, token: str, customer: str, own: str, others: str) -> list[Door]:
    """Try all doors, for a container of the customer's own, and for somebody else's."""
    topics = "/streams/containers/topics"
    mine, theirs = (f"{topics}/{quote(each, safe='')}" for each in (own, others))
    found = []
    status, _, headers = ask(address, token, f"{topics}?limit=0")
    found.append(Door("how many containers there are", status, headers.get("headrace-count")))
    status, page, _ = ask(address, token, f"{topics}?limit=10000")
    names = [each["name"] for each in page.get("topics", ())]
    strangers = sum(not each.startswith(f"{customer}|") for each in names)
    found.append(Door(f"of the first {len(names):,}, those of others", status, strangers))
    status, page, _ = ask(address, token, mine)
    found.append(Door(f"the history of {own}", status, [each["record"] for each in page.get("records", ())]))
    found.append(Door(f"following {own}", *follow(address, token, f"{mine}/follow?start=earliest")))
    found.append(Door(f"the history of {others}", ask(address, token, theirs)[0]))
    found.append(Door(f"following {others}", follow(address, token, f"{theirs}/follow?start=earliest")[0]))
    found.append(
        Door("following the whole stream", follow(address, token, "/streams/containers?start=earliest")[0])
    )
    for what, path in {
        "the whole stream": "/streams/containers",
        "the ships": f"{topics.replace('containers', 'ships')}/blue-whale",
        "the manifests": "/tables/manifest",
        "what this server has": "/openapi.json",
    }.items():
        found.append(Door(what, ask(address, token, path)[0]))
    return found


def show(found: list[Door], say: Callable[[str], None] = print) -> None:
    for door in found:
        seen = door.seen if isinstance(door.seen, list) else [] if door.seen is None else [door.seen]
        records = [each for each in seen if isinstance(each, dict)]
        say(f"  {door.status}  {door.what}" + ("" if records or not seen else f": {seen[0]}"))
        for record in sorted(records, key=lambda each: each["at"]):  # a log has them as they came
            say(f"         {record['at']}  {record['what']:9}  {record['site']}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--address", default="http://127.0.0.1:8080", help="where headquarters listens")
    options.add_argument("--token", required=True)
    options.add_argument("--customer", default="acme")
    options.add_argument("--own", default="acme|C-000002", help="a container of the customer's")
    options.add_argument("--others", default="toyland|C-000011", help="one of somebody else's")
    chosen = options.parse_args()
    show(doors(chosen.address, chosen.token, chosen.customer, chosen.own, chosen.others))


if __name__ == "__main__":
    main()
