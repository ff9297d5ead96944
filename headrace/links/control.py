"""Pausing a link and letting it go on: said in the log of each site that it copies into."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import NotFoundError, RunningError, UnavailableError
from headrace.links.state import CONTROL, Entry, FlowState, Known, links_stream, read
from headrace.log.site import Site
from headrace.settings import LinkSettings, Settings


def link_named(settings: Settings, name: str) -> LinkSettings:
    try:
        return settings.links[name]
    except KeyError:
        known = ", ".join(sorted(settings.links)) or "none"
        raise NotFoundError(
            f"There is no link {name!r}; this project has: {known}.",
            remedy=f"Declare it in headrace.toml as [links.{name}].",
        ) from None


def pause(settings: Settings, name: str, paused: bool) -> list[str]:
    """Pause a link, or let it go on, at every site that it copies into; returns those sites.

    UnavailableError names the first that does not answer; those before it have been told.
    """
    link = link_named(settings, name)
    told: list[str] = []
    for _, target in link.ways():
        site = Site(settings.site_named(target), app="headrace")
        try:
            site.admin().ensure(links_stream)
            with site.producer(profile="latency", options={"enable.idempotence": False}) as producer:
                producer.send(links_stream, Entry(CONTROL, name, paused=paused)).result()
        except (RunningError, UnavailableError) as error:
            raise UnavailableError(
                f"Site {target!r} has not been told: {error.message}",
                remedy=f"Say it again when it is up{f'; {told[0]} knows already' if told else ''}.",
            ) from None
        finally:
            site.close()
        told.append(target)
    return told


def flows(settings: Settings) -> list[tuple[LinkSettings, str, str, FlowState | None, str]]:
    """Every way of every link, with what the target's log says of it: link, source, target, state, problem."""
    said: dict[str, Known | str] = {}
    for target in sorted({target for link in settings.links.values() for _, target in link.ways()}):
        try:
            said[target] = read(settings.site_named(target))
        except (RunningError, UnavailableError) as error:
            said[target] = error.message
    return [_flow(link, way, said[way[1]]) for link in settings.links.values() for way in link.ways()]


def _flow(
    link: LinkSettings, way: Sequence[str], said: Known | str
) -> tuple[LinkSettings, str, str, FlowState | None, str]:
    source, target = way
    if isinstance(said, str):
        return link, source, target, None, said
    entry = said.get("flow", f"{link.name}/{source}")
    return link, source, target, entry.flow if entry is not None else None, ""
