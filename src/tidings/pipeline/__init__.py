"""The pipeline from the bus into a lake: every message once and only once, cleaned, and summed up.

    lake.py      the folder: which tables there are, whose they are, who may write now
    schema.py    the columns of each table
    delta.py     Delta tables: one commit for each micro-batch, which a repeated batch does not change
    parts.py     what the executors do: Parquet files and their statistics
    source.py    a table's commits as a stream, so that a layer can read the one below it
    bronze.py    every message as it is
    silver.py    duplicates and what is not text kept apart, order checked, numbers in words
    gold.py      figures for each topic and window, and back to the bus with them
    run.py       the three queries, started, watched and stopped
    upkeep.py    compaction and retention
    status.py    how far a lake is
    report.py    a page with the figures of gold

Spark is the engine: it reads, shuffles, aggregates, keeps state and notes progress. What is here is the way from its
micro-batches into tables that anybody can read without a JAR. It comes with the extra `spark`;
docs/pipeline.md has the promises.
"""
