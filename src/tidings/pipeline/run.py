"""The three queries of the pipeline: started, watched and stopped.

Each has its own checkpoint and reads what the one below has committed, so each can be at another place, and one that
is stopped at any moment, in whatever way, goes on there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidings.errors import NUMBERED, InvalidRequest, StorageError, TidingsError
from tidings.pipeline import bronze, gold, silver
from tidings.pipeline.lake import Lake, Manifest
from tidings.pipeline.plan import Plan
from tidings.pipeline.source import LakeSource
from tidings.spark import lag
from tidings.spark.planning import DataLoss

LAYERS = ("bronze", "silver", "gold")
POLL_S = 0.2
PASSING = ("Python worker failed to connect back", "StackOverflowError")
"""Failures that may not come again, and a query that begins again repeats nothing. On a busy machine Spark gives up on
a Python process that takes more than ten seconds to start; and its driver runs out of stack, however large that is,
when a job of its own is interrupted at the wrong moment."""
REVIVALS_MAX = 10
OURS: dict[str, type[TidingsError]] = {kind.__name__: kind for kind in (*NUMBERED.values(), DataLoss, StorageError)}


@dataclass(frozen=True)
class Step:
    """What a layer has done since the run began."""

    layer: str
    rows: int
    batches: int
    lag: int | None
    """Messages (bronze) or commits (silver, gold) that are still to be read; None when it is not known yet."""


Watch = Callable[[dict[str, Step]], None]


def prepare(lake: Lake, plan: Plan, window_s: int | None) -> None:
    """Makes the lake or checks that it is one for this plan; call it with the lake locked."""
    fresh = Manifest() if window_s is None else Manifest(window_s=window_s)
    lake.create(fresh)
    manifest = lake.manifest()
    if window_s is not None and window_s != manifest.window_s:
        raise InvalidRequest(
            f"The windows of this lake last {manifest.window_s} s, not {window_s} s: "
            "omit --window, or begin a new lake."
        )
    if plan.publish is not None and plan.publish not in manifest.published:
        lake.write_manifest(msgspec.structs.replace(manifest, published=(*manifest.published, plan.publish)))
    for name in ("silver", "gold"):
        if not (lake.checkpoint(name) / "metadata").exists() and lake.table(name).version() > 0:
            raise InvalidRequest(
                f"The checkpoint of {name} is missing from {lake.folder}: restore it, or delete the folder "
                f"{lake.folder / name}{_made_with(lake, name)} too; the next run rebuilds it from the layer below."
            )


def _made_with(lake: Lake, name: str) -> str:
    return "" if name == "gold" else f" and {lake.folder / 'rejected'} and {lake.folder / 'publishers'}"


class Pipeline:
    """One run of the pipeline on a lake that is prepared and locked."""

    def __init__(self, spark: SparkSession, lake: Lake, plan: Plan, topics: Iterable[str]) -> None:
        spark.dataSource.register(LakeSource)
        self._spark = spark
        self._lake = lake
        self._plan = plan
        self._topics = list(topics)
        self._steps = {layer: Step(layer, 0, 0, None) for layer in LAYERS}
        self._queries: dict[str, StreamingQuery] = {}
        self._triggers: dict[str, dict[str, Any]] = {}
        self._revivals = dict.fromkeys(LAYERS, 0)
        self._seen: dict[str, tuple[str, int]] = {}
        """The last progress of each query that is counted: its time and its batch."""
        self.stopped_early = False
        """Whether a query was at work, or still to begin, when the run was stopped."""

    def once(self, watch: Watch | None, stop: threading.Event, layers: Sequence[str] = LAYERS) -> dict[str, Step]:
        """Takes everything that is there through the layers, and returns."""
        for layer in layers:
            if stop.is_set():
                self.stopped_early = True
                break
            self._start(layer, {"availableNow": True})
            self._wait([layer], watch, stop)
        return self._steps

    def keep_running(self, every_s: float, watch: Watch | None, stop: threading.Event) -> dict[str, Step]:
        """Looks for new messages again and again, until `stop` is set; all layers work at the same time."""
        for layer in LAYERS:
            self._start(layer, {"processingTime": f"{round(every_s * 1000)} milliseconds"})
        self._wait(LAYERS, watch, stop)
        return self._steps

    def _start(self, layer: str, trigger: dict[str, Any]) -> None:
        self._triggers[layer] = trigger
        match layer:
            case "bronze":
                writer = bronze.query(self._spark, self._lake, self._plan, self._topics)
            case "silver":
                writer = silver.query(self._spark, self._lake, self._plan)
            case _:
                writer = gold.query(self._spark, self._lake, self._plan)
        writer = writer.option("checkpointLocation", str(self._lake.checkpoint(layer)))
        self._queries[layer] = writer.trigger(**trigger).start()

    def _wait(self, layers: Sequence[str], watch: Watch | None, stop: threading.Event) -> None:
        """Until the queries have ended, one of them has failed for good, or `stop` is set."""
        try:
            while self._are_at_work(layers):
                if stop.wait(POLL_S):
                    self.stopped_early = True
                    break
                self._count(layers)
                if watch is not None:
                    watch(self._steps)
        finally:
            for layer in layers:
                self._queries[layer].stop()
        self._count(layers)

    def _are_at_work(self, layers: Sequence[str]) -> bool:
        """Whether some query goes on; all of them are looked at."""
        going_on = [self._is_at_work(layer) for layer in layers]
        return any(going_on)

    def _is_at_work(self, layer: str) -> bool:
        """Whether a query goes on. One that has failed is begun again if that may help; otherwise it raises."""
        query = self._queries[layer]
        active, problem = query.isActive, query.exception()  # In this order: a failure must not look like an end.
        if problem is None:
            return active
        self._count([layer])
        passes = any(text in str(problem) for text in PASSING)
        if not passes or self._revivals[layer] == REVIVALS_MAX:
            raise explain(layer, str(problem)) from problem
        self._revivals[layer] += 1
        self._start(layer, self._triggers[layer])
        return True

    def _count(self, layers: Iterable[str]) -> None:
        """Adds up what the queries have done since we last looked. An idle query reports too, now and then."""
        for layer in layers:
            for progress in self._queries[layer].recentProgress:
                moment = (progress["timestamp"], progress["batchId"])
                if moment <= self._seen.get(layer, ("", -1)):
                    continue
                self._seen[layer] = moment
                step = self._steps[layer]
                self._steps[layer] = replace(
                    step,
                    rows=step.rows + progress.numInputRows,  # With Spark Connect only the property knows it.
                    batches=step.batches + ("addBatch" in progress["durationMs"]),
                    lag=sum(lag(progress).values()),
                )


RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (\S[^\n]*)", re.MULTILINE)
"""How the last line of a traceback looks; ours and those of others."""


def explain(layer: str, text: str) -> TidingsError:
    """What went wrong in a query, as one sentence, out of all that Spark says about it.

    >>> explain("bronze", "...\\ntidings.errors.Unavailable: The broker does not answer.\\n=== Streaming Query ===...")
    Unavailable('The broker does not answer.')
    >>> explain("silver", "...\\nOSError: [Errno 28] No space left on device")
    TidingsError('The query of silver failed: OSError: [Errno 28] No space left on device')
    """
    told = text.partition("=== Streaming Query ===")[0]
    raised = RAISED.findall(told)
    for name, sentence in reversed(raised):
        if name in OURS:
            return OURS[name](sentence)
    name, sentence = raised[-1] if raised else ("Spark", " ".join(told.split())[:300] or "no reason given")
    return TidingsError(f"The query of {layer} failed: {name}: {sentence}")
