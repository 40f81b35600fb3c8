"""Writes down what Java makes of Spark's classes, for all Java processes after it: `-m tests.spark.class_archive FILE`.

A session starts in half the time with it, and the tests start a dozen. Java leaves out an archive that is not its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

from tests.spark.conftest import java_is_there, make_session


def write(file: Path) -> None:
    """Runs a little of what most sessions run, and has Java write down at its end what it has loaded."""
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f'"-XX:ArchiveClassesAtExit={part}" -Xlog:disable'
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # Those of Spark's own modules.
        session = make_session(**{"spark.sql.warehouse.dir": folder})
        table = f"{folder}/table"
        frame = session.range(100).selectExpr("id", "id % 7 as seventh")
        frame.mapInArrow(lambda batches: batches, "id long, seventh long").write.parquet(table)
        session.read.parquet(table).groupBy("seventh").count().orderBy("seventh").collect()
        stream = session.readStream.schema("id long, seventh long").parquet(table).writeStream.format("noop")
        stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(
            availableNow=True
        ).start().awaitTermination()
        java = session.sparkContext._gateway.proc
        session.stop()
        java.stdin.close()  # Java ends with its driver.
        java.wait()
    if part.exists():
        part.replace(file)


if __name__ == "__main__" and java_is_there():
    write(Path(sys.argv[1]).absolute())
