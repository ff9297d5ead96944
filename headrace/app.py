"""An app: what a user writes. It collects definitions; nothing runs, connects or is created at import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headrace import settings as _settings
from headrace.access import Access
from headrace.errors import DefinitionError
from headrace.links.roaming import RoamingConsumer
from headrace.log.admin import is_own
from headrace.log.consumer import Consumer
from headrace.log.offsets import Delivery, Start
from headrace.log.producer import Producer, Profile
from headrace.log.site import Site
from headrace.log.stream import (
    DEAD_LETTER_SUFFIX,
    DEFAULT_MAX_BYTES,
    DEFAULT_PARTITIONS,
    DEFAULT_RETENTION,
    OWN_PREFIX,
    Stream,
    check_name,
)
from headrace.log.topic import Selection
from headrace.metrics import Metrics
from headrace.pages import Page, answers, check_path, define_page
from headrace.pipelines.definition import Emit, Pipeline, define
from headrace.pipelines.triggers import Trigger
from headrace.settings import Settings
from headrace.tables.table import Copies, Keep, Table
from headrace.tables.topics import TopicStream
from headrace.units import duration, size_bytes

if TYPE_CHECKING:
    from headrace.models.drift import Drift
    from headrace.models.model import Model
    from headrace.models.registry import Registry
    from headrace.models.training import Training
    from headrace.services.companion import Companion
    from headrace.services.service import Service
    from headrace.stores.store import Store

R = TypeVar("R")

_NAME_MAX = 249 - len(DEAD_LETTER_SUFFIX)


class App:
    """Declares streams and opens clients on them.

    >>> import headrace as hr
    >>> app = hr.App("shop")
    >>> class Purchase(hr.Record):
    ...     id: str
    ...     customer: str
    >>> purchases = app.stream("purchases", Purchase, key="customer", retention="30 days")
    >>> purchases.partitions
    4
    """

    def __init__(
        self,
        name: str,
        *,
        settings: Settings | None = None,
        site: str | None = None,
        access: Access | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or not name.replace("-", "").replace("_", "").isalnum():
            raise DefinitionError(
                f"{name!r} is not a name for an app.", remedy="Use letters, digits, hyphens and underscores."
            )
        self.name = name
        self.streams: dict[str, Stream[Any]] = {}
        self.pipelines: dict[str, Pipeline] = {}
        self.services: dict[str, Service] = {}
        self.models: dict[str, Model] = {}
        self.trainings: dict[str, Training] = {}
        self.pages: dict[str, Page] = {}
        self._settings = settings
        self._site_name = site
        self._access = access

    def stream(
        self,
        name: str,
        record_type: type[R],
        *,
        key: str | tuple[str, ...] = (),
        time: str | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        retention: str | timedelta | Literal["forever"] | None = None,
        compact: bool = False,
        topics: bool = False,
        max_bytes: int | str = DEFAULT_MAX_BYTES,
        access: Access | None = None,
    ) -> Stream[R]:
        """Declare a stream.

        `key` names the field, or fields, by which records are partitioned and ordered; `time` the field
        that holds the event time. Records are kept for seven days, those of a compacted stream for ever,
        unless `retention` says otherwise. With `topics`, the history of each key can be read by itself. `access`
        says who may use it on a secure site, instead of what the app says for all its streams.
        """
        declared: Stream[R] = self._declare(
            TopicStream if topics else Stream,
            name,
            record_type,
            key=key,
            time=time,
            partitions=partitions,
            retention=retention,
            compact=compact,
            max_bytes=max_bytes,
            access=access,
        )
        return declared

    def table(
        self,
        name: str,
        record_type: type[R],
        *,
        key: str | tuple[str, ...],
        time: str | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        retention: str | timedelta | Literal["forever"] | None = None,
        max_bytes: int | str = DEFAULT_MAX_BYTES,
        access: Access | None = None,
        keep: Keep = "latest",
        copies: Copies = "full",
    ) -> Table[R]:
        """Declare a table: a compacted stream, of which the latest record of each `key` counts.

        With `keep="history"` all records of a key count, by their `time`, for as long as `retention` says.
        Each instance of a service has a full copy, or with `copies="partitioned"` its share.
        """
        declared: Table[R] = self._declare(
            Table,
            name,
            record_type,
            key=key,
            time=time,
            partitions=partitions,
            retention=retention,
            compact=keep != "history",
            max_bytes=max_bytes,
            access=access,
            keep=keep,
            copies=copies,
        )
        return declared

    def open(
        self, *tables: Stream[Any], on_progress: Callable[[str, int, int], None] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Keep copies of tables and histories of topics, all of this app's if none is named, while a block lasts.

        The block begins when they have all that was in the log; `on_progress` is told table, records done and
        records there are.
        """
        from headrace.tables.opened import OpenTables

        chosen: list[Any] = list(tables or (*self.tables, *self.streams_with_topics))
        for each in chosen:
            if not isinstance(each, Table | TopicStream):
                raise DefinitionError(
                    f"Stream {each.name!r} is no table and has no topics.", remedy="Declare it with topics=True."
                )
        opened = OpenTables(self.site, self.settings.state / "tables" / self.name)
        return opened.block(chosen, on_progress or (lambda table, done, total: None))

    def _declare(
        self,
        kind: Callable[..., Any],
        name: str,
        record_type: type[R],
        *,
        key: str | tuple[str, ...],
        retention: Any,
        compact: bool,
        max_bytes: int | str,
        access: Access | None,
        **more: Any,
    ) -> Any:
        check_name(name)
        if name in self.streams:
            raise DefinitionError(
                f"Stream {name!r} is declared twice: here and at {self.streams[name].declared_at}.",
                remedy="Use the first, or another name.",
            )
        if len(name) > _NAME_MAX:
            raise DefinitionError(
                f"Stream {name[:20]!r}… has a name of {len(name)} letters.",
                remedy=f"Use {_NAME_MAX} at most: its dead letters need a name too.",
            )
        if name.startswith(OWN_PREFIX) or name.endswith(DEAD_LETTER_SUFFIX):
            raise DefinitionError(
                f"{name!r} is kept for Headrace's own streams.",
                remedy=f"Choose one that does not begin with {OWN_PREFIX!r} or end with {DEAD_LETTER_SUFFIX!r}.",
            )
        caller = sys._getframe(2)
        try:
            kept: timedelta | None = None if compact else DEFAULT_RETENTION
            if retention is not None:
                kept = None if retention == "forever" else duration(retention)
            bytes_allowed = size_bytes(max_bytes)
        except ValueError as error:
            raise DefinitionError(f"Stream {name!r}: {error}.") from None
        stream = kind(
            name,
            record_type,
            key=(key,) if isinstance(key, str) else tuple(key),
            retention=kept,
            compact=compact,
            max_bytes=bytes_allowed,
            access=access or self._access,
            declared_at=f"{caller.f_code.co_filename}:{caller.f_lineno}",
            site=lambda: self.site,
            **more,
        )
        self.streams[name] = stream
        return stream

    def pipeline(
        self,
        *sources: Stream[Any] | Store,
        to: Stream[Any] | Store | tuple[Stream[Any] | Store, ...],
        trigger: Trigger,
        name: str | None = None,
        emit: Emit = "updates",
        metadata: bool = False,
        watermark: str | timedelta | None = None,
        idle: str | timedelta | None = None,
        max_batch: int | None = None,
        where: str | None = None,
    ) -> Callable[[Callable[..., Any]], Pipeline]:
        """Declare a pipeline: a function from the DataFrames of the sources to those of the outputs.

        `emit="final"` lets an aggregate's row out once, when the watermark has passed it. `metadata` adds the
        columns `_key`, `_partition`, `_offset`, `_time`, `_headers` and `_id`. `watermark` is how
        late a record may be by its stream's event time, instead of `withWatermark` in the function; `idle` closes
        windows even when nothing comes for so long. `max_batch` limits the records of one batch. `where` is a
        condition in SQL, on the record's columns and those of `metadata`: other records are left out before the
        watermark sees them.
        """
        declared_at = _caller()

        def declare(function: Callable[..., Any]) -> Pipeline:
            return self._add(
                define(
                    function,
                    sources,
                    to,
                    trigger,
                    name=name,
                    emit=emit,
                    metadata=metadata,
                    watermark=None if watermark is None else _late(watermark),
                    idle=_idle(idle),
                    max_batch=max_batch,
                    where=where,
                    declared_at=declared_at,
                )
            )

        return declare

    def sql_pipeline(
        self,
        name: str,
        query: str,
        *,
        to: Stream[Any] | Store,
        trigger: Trigger,
        watermark: str | timedelta = "10 minutes",
        stores: Sequence[Store] = (),
        emit: Emit = "updates",
        idle: str | timedelta | None = None,
        max_batch: int | None = None,
        where: str | None = None,
    ) -> Pipeline:
        """Declare a pipeline in SQL over this app's streams and tables, and over `stores`, by their names.

        `watermark` is how late a record may be, for the streams that have an event time. `where` is that of
        `pipeline`.
        """
        from headrace.pipelines.sql import define_sql

        pipeline = define_sql(
            name,
            query,
            self.streams,
            to,
            trigger,
            delay=_late(watermark),
            stores={store.name: store for store in stores},
            emit=emit,
            idle=_idle(idle),
            max_batch=max_batch,
            where=where,
            declared_at=_caller(),
        )
        return self._add(pipeline)

    def service(self, name: str, *, tables: Sequence[Table[Any]] = ()) -> Service:
        """Declare a service: handlers on streams and on HTTP, beside this app's tables.

        `tables` are those that are shared out among the service's instances, by partitions; the others are there
        in full anyway.
        """
        from headrace.services.service import Service

        if name in self.services or name in self.pipelines:
            raise DefinitionError(f"{name!r} is declared twice.", remedy="Give the service another name.")
        made = Service(name, declare_table=self.table, tables=tuple(tables), declared_at=_caller())
        self.services[name] = made
        return made

    def model(
        self,
        name: str,
        *,
        features: str | Sequence[str],
        required: bool = True,
        keep: int = 100,
        drift: Drift | Literal[False] | None = None,
    ) -> Model:
        """Declare a model: versioned parameters that give a record with these number fields a score.

        If it is `required`, services read no stream before it has a version. `keep` is how many versions stay in
        the log. `drift` says how inputs and scores are watched; False: not at all.
        """
        from headrace.models.drift import Drift
        from headrace.models.model import Model

        if name in self.models:
            raise DefinitionError(
                f"Model {name!r} is declared twice: here and at {self.models[name].declared_at}.",
                remedy="Use the first, or another name.",
            )
        watched = None if drift is False else drift or Drift()
        options: dict[str, Any] = {"required": required, "keep": keep, "drift": watched}
        made = Model(name, features, self._models_registry(_caller()), declared_at=_caller(), **options)
        self.models[name] = made
        return made

    def train(
        self,
        model: Model,
        *sources: Stream[Any] | Store,
        trigger: Trigger,
        on_drift: bool = False,
        last: str | timedelta | None = None,
        name: str | None = None,
    ) -> Callable[[Callable[..., Any]], Training]:
        """Declare a training: a function from the DataFrames of the sources to a model, and when it is run.

        It returns a model of Spark MLlib or of `hr.models`, or a pair of it and its metrics. With `on_drift` it is
        run sooner when what comes is no longer what the newest version was trained on. `last` limits streams to
        records sent so recently, and a lake by the time column of its retention. With `hr.once()`, only
        `headrace model train` runs it.
        """
        from headrace.models.training import define_training

        declared_at = _caller()

        def declare(function: Callable[..., Any]) -> Training:
            made = define_training(
                function,
                model,
                sources,
                trigger,
                name=name,
                last=last,
                on_drift=on_drift,
                declared_at=declared_at,
            )
            if made.name in self.trainings or made.name in self.pipelines:
                raise DefinitionError(f"{made.name!r} is declared twice.", remedy="Give the training name=…")
            self.trainings[made.name] = made
            return made

        return declare

    def page(
        self, path: str, *, title: str | None = None, icon: str = "dashboard"
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Declare a page of the console: a function without arguments, async or not, that builds it with `hr.ui`.

        It is called in the console's process, once for each visitor. `title` is what the menu says, the function's
        name if it is left out; `icon` one of the Material icons.
        """
        check_path(path)
        if path in self.pages:
            raise DefinitionError(
                f"Page {path!r} is declared twice: here and at {self.pages[path].declared_at}.",
                remedy="Give one of them another path.",
            )
        declared_at = _caller()

        def declare(function: Callable[[], Any]) -> Callable[[], Any]:
            self.pages[path] = define_page(function, path, title=title, icon=icon, declared_at=declared_at)
            return function

        return declare

    def check_pages(self) -> None:
        """Refuse pages where a service answers, too. Whoever runs the app asks: by then, all is declared."""
        for service in self.services.values():
            found = [route.path for route in service.routes if route.method == "GET"]
            for kind in service.sessions:
                found += [tag.arguments[0] for tag, _ in kind.routes if tag.kind in ("get", "sse", "websocket")]
            for path, page in self.pages.items():
                if any(answers(each, path) for each in found):
                    raise DefinitionError(
                        f"Page {path!r}, declared at {page.declared_at}, has a path that service {service.name!r} "
                        "answers.",
                        remedy="Give the page or the route another one.",
                    )

    def _models_registry(self, declared_at: str) -> Registry:
        """The streams of models are this app's as soon as it has one."""
        from headrace.models.registry import Registry

        if not hasattr(self, "_registry"):
            made = Registry(
                lambda: self.site,
                lambda: self.settings.models_folder,
                declared_at=declared_at,
                access=self._access,
            )
            for stream in made.streams:
                if stream.name in self.streams:
                    raise DefinitionError(
                        f"Stream {stream.name!r} is declared at {self.streams[stream.name].declared_at}, "
                        "but an app with models needs that name.",
                        remedy="Give your stream another name.",
                    )
            self.streams.update({stream.name: stream for stream in made.streams})
            self._registry = made
        return self._registry

    @property
    def companions(self) -> list[Companion]:
        """What works beside the services: whatever keeps the models up to date."""
        if not self.models:
            return []
        from headrace.models.keeper import Keeper

        return [Keeper(self._registry, list(self.models.values()))]

    def _add(self, pipeline: Pipeline) -> Pipeline:
        if pipeline.name in self.pipelines:
            raise DefinitionError(
                f"Pipeline {pipeline.name!r} is declared twice: here and at "
                f"{self.pipelines[pipeline.name].declared_at}.",
                remedy="Give one of them another name: name=…",
            )
        self.pipelines[pipeline.name] = pipeline
        return pipeline

    @property
    def open_streams(self) -> list[Stream[Any]]:
        """What can be written and read from outside: all but what sessions and models keep for themselves."""
        own = {kind.table.name for service in self.services.values() for kind in service.sessions}
        if self.models:
            own |= {stream.name for stream in self._registry.streams}
        return [stream for name, stream in self.streams.items() if name not in own]

    @property
    def tables(self) -> list[Table[Any]]:
        return [stream for stream in self.streams.values() if isinstance(stream, Table)]

    @property
    def streams_with_topics(self) -> list[Stream[Any]]:
        return [stream for stream in self.streams.values() if stream.has_topics]

    def tables_beside(self, services: Sequence[Service]) -> list[Table[Any]]:
        """The tables where these services run: all but those that are shared out among instances of others."""
        here = {table.name for service in services for table in service.shared}
        others = {table.name for service in self.services.values() for table in service.shared} - here
        return [table for table in self.tables if table.name not in others]

    def use(self, settings: Settings, site: str | None = None) -> None:
        """Work with these settings, and on this site, from now on."""
        self.close()
        self._settings = settings
        self._site_name = site or self._site_name

    @property
    def settings(self) -> Settings:
        """The project's settings, read when first needed."""
        if self._settings is None:
            self._settings = _settings.load()
        return self._settings

    @cached_property
    def site(self) -> Site:
        """The log cluster this app works on."""
        return Site(self.settings.site_named(self._site_name), app=self.name)

    def create(self) -> None:
        """Create all declared streams in the log, or bring them up to their definitions.

        Streams that another app declares, and this one reads or writes, are created if they are not there.
        """
        admin = self.site.admin()
        there = admin.partition_counts()
        used = {each.name: each for each in self._used() if each.name not in there and not is_own(each.name)}
        admin.ensure(*{**used, **self.streams}.values())

    def _used(self) -> Iterator[Stream[Any]]:
        """The streams that are named by what this app runs."""
        for pipeline in self.pipelines.values():
            yield from (each for each in (*pipeline.sources, *pipeline.outputs) if isinstance(each, Stream))
        for training in self.trainings.values():
            yield from (each for each in training.sources if isinstance(each, Stream))
        for service in self.services.values():
            for handler in service.handlers:
                yield from (each for each in (handler.stream, handler.to) if each is not None)

    def producer(
        self, element: str = "", *, profile: Profile = "throughput", options: Mapping[str, Any] | None = None
    ) -> Producer:
        """A producer for any of the streams; `profile="latency"` sends each record at once."""
        return self.site.producer(element, profile=profile, options=options)

    @overload
    def consumer(
        self,
        *streams: Stream[R],
        group: str | None = ...,
        start: Start = ...,
        until: Literal["end"] | None = ...,
        delivery: Delivery = ...,
        topics: str | Sequence[str] | None = ...,
        options: Mapping[str, Any] | None = ...,
        sites: None = ...,
    ) -> Consumer[R]: ...

    @overload
    def consumer(
        self,
        *streams: Stream[R],
        group: str | None = ...,
        start: Start = ...,
        delivery: Delivery = ...,
        topics: str | Sequence[str] | None = ...,
        options: Mapping[str, Any] | None = ...,
        sites: Sequence[str],
    ) -> RoamingConsumer[R]: ...

    def consumer(
        self,
        *streams: Stream[R],
        group: str | None = None,
        start: Start = "earliest",
        until: Literal["end"] | None = None,
        delivery: Delivery = "at_least_once",
        topics: str | Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        sites: Sequence[str] | None = None,
    ) -> Consumer[R] | RoamingConsumer[R]:
        """A consumer of one or several streams.

        With `group`, its position is kept in the log and its partitions are shared with other members;
        `start` then only matters to a new group. Without one, it reads all partitions from `start`, to the
        present end if `until="end"`. `topics` leaves out all but the records with these keys; a `*` at the end
        of one stands for anything. With `sites`, in the order of preference, it reads at the first that answers,
        and moves to the next when that one is gone.
        """
        choices: dict[str, Any] = {
            "group": group,
            "start": start,
            "until": until,
            "delivery": delivery,
            "topics": None if topics is None else Selection(topics),
            "options": options,
        }
        if sites is None:
            return self.site.consumer(*streams, **choices)
        return RoamingConsumer(
            [self.settings.site_named(name) for name in sites],
            lambda site, roaming: site.consumer(*streams, **choices, roaming=roaming),
            streams,
            app=self.name,
            group=group,
        )

    def metrics(self, element: str) -> Metrics:
        """Counters and histograms of an element, published to `headrace.metrics` every few seconds."""
        return self.site.reporter.metrics(element)

    def close(self) -> None:
        """Flush what was published and end the clients this process shares."""
        if "site" in self.__dict__:
            self.site.close()
            del self.__dict__["site"]

    def __repr__(self) -> str:
        return f"<App {self.name!r} with {len(self.streams)} streams>"


def _caller() -> str:
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _late(value: str | timedelta) -> str:
    try:
        return f"{round(duration(value).total_seconds() * 1000)} milliseconds"
    except ValueError as error:
        raise DefinitionError(f"watermark: {error}.") from None


def _idle(value: str | timedelta | None) -> float | None:
    try:
        return None if value is None else duration(value).total_seconds()
    except ValueError as error:
        raise DefinitionError(f"idle: {error}.") from None
