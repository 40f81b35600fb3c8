"""A driver that copies the topic `in` to `out` until it is killed: `-m tests.spark.copying MASTER BUS FOLDER LIMIT`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidings.spark.session import open_session


def copy(master: str, bus: str, folder: Path, limit: int) -> None:
    """Copies through a shuffle, which may order a micro-batch that is repeated otherwise than the first time."""
    spark = open_session("copying", master)
    reader = spark.readStream.format("tidings").options(bus=bus, topic="in", startingOffsets="earliest", tasks=3)
    frame = reader.option("maxMessagesPerTrigger", limit).load().repartition(2).select("value")
    writer = frame.writeStream.format("tidings").options(bus=bus, topic="out")
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    copy(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
