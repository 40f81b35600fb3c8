"""Where a command runs its sweep: as tasks of Spark, or in processes of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tidings_lab.experiments.sweep import Engine


@contextlib.contextmanager
def engine_for(master: str | None, jobs: int, tasks: int | None = None) -> Iterator[Engine]:
    """With a master it is Spark, for as long as the context lasts. InvalidRequest says so when Spark is missing."""
    if master is None:
        from tidings_lab.experiments.local import LocalEngine

        yield LocalEngine(jobs)
        return
    from tidings.spark.session import spark_session
    from tidings_lab.experiments.on_spark import SparkEngine

    with spark_session("tidings sweep", master) as session:
        yield SparkEngine(session, tasks)


def lake_folder(lake: str, *names: str) -> str:
    """A folder of the lake, for anyone who works in another folder too; an address such as hdfs://... stays as it is.

    >>> lake_folder("hdfs://lake/", "experiments", "load")
    'hdfs://lake/experiments/load'
    """
    root = lake.rstrip("/") if "://" in lake else str(Path(lake).absolute())
    return "/".join((root, *names))
