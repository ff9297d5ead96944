"""The contract of a store: what a pipeline may rely on, whichever store it writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.settings import Settings


class Store(Protocol):
    """Where rows rest.

    Delivery: exactly once for each pair of writer and batch. Ordering: the batches of one writer in the
    order of their numbers. Threads: called on the driver, one batch of a writer at a time; blocks. On
    failure: nothing of the batch is there, and it may be written again.
    """

    @property
    def name(self) -> str:
        """Names the store in messages."""

    def check(self, schema: StructType, settings: Settings) -> None:
        """Refuse, before any data flows, rows that do not fit; DefinitionError names every such column.

        Compares with the table that is there, else with the declared record type. Creates nothing.
        """

    def write(self, batch: DataFrame, settings: Settings, *, writer: str, batch_id: int) -> None:
        """Write a batch once: repeated after a crash, at whatever point, it changes nothing.

        A number that is not larger than the writer's last one is taken for a repetition. So `writer`
        names one checkpoint, not only one pipeline: whoever starts from a new checkpoint is a new writer.
        """

    def read(self, spark: SparkSession, settings: Settings) -> DataFrame:
        """What is there now; NotFoundError if there is nothing and no record type tells its columns."""
