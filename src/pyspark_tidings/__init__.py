"""Where Spark looks for the data source `tidings`: it imports every top-level module named pyspark_*.

A module of that kind that cannot be imported hides all others, so this one holds nothing but the name.
"""

from __future__ import annotations

from tidings.spark.source import TidingsSource as DefaultSource

__all__ = ["DefaultSource"]
