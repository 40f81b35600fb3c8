"""What a user does with topics in Spark, as a program of its own: `story.py MASTER BUS FOLDER [KEYS USER]`.

It opens its session as the commands do, so the same lines run in local mode, on a cluster and through Spark Connect.
What it has seen is printed as one line of JSON, for a test to judge.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidings.spark.session import spark_session


def places(batches: Iterator[Any]) -> Iterator[Any]:
    """The folder in which each task works, and whose Python; on a cluster the folder is an executor's."""
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()], "python": [sys.prefix], "rows": [rows]})


def tell(master: str, folder: Path, **door: str) -> dict[str, Any]:
    """Reads in batch, as a stream, and writes both ways; what came of it."""
    seen: dict[str, Any] = {}
    with spark_session("story", master) as spark:
        frame = spark.read.format("tidings").options(**door, topic="in", tasks=4).load()
        seen["rows"] = frame.count()
        seen["offsets"] = frame.agg({"offset": "sum"}).first()[0]
        found = frame.select("offset").mapInArrow(places, "folder string, python string, rows long").collect()
        seen["folders"] = sorted({row.folder for row in found})
        seen["pythons"] = sorted({row.python for row in found})
        seen["tasks"] = len(found)
        values = frame.selectExpr("key", "concat(cast(value as string), '!') as value")
        values.write.format("tidings").options(**door, topic="written").mode("append").save()
        reader = spark.readStream.format("tidings").options(**door, topic="in", startingOffsets="earliest", tasks=3)
        stream = reader.option("maxMessagesPerTrigger", 4_000).load().select("key", "value")
        for _ in range(2):  # The second query goes on from the first one's checkpoint, and finds nothing new.
            writer = stream.writeStream.format("tidings").options(**door, topic="streamed")
            writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            seen.setdefault("queries", []).append(str(query.id))
        try:
            spark.read.format("tidings").options(**door, topic="nowhere").load().count()
        except Exception as error:  # noqa: BLE001 - its class depends on the kind of session
            seen["error"] = str(error)
    return seen


if __name__ == "__main__":
    chosen, place, *rest = sys.argv[1:]
    secrets = dict(zip(("keys", "user"), rest[1:], strict=True)) if rest[1:] else {}
    print(json.dumps(tell(chosen, Path(rest[0]), bus=place, **secrets)))
