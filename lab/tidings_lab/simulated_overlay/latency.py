"""How long a message is under way: models of latency, as data.

Every model is turned into a table of equally likely delays, so that a draw costs the same for all of them: one look
into the table.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec

TABLE_BITS = 12
TABLE_SIZE = 1 << TABLE_BITS
P99_DEVIATIONS = NormalDist().inv_cdf(0.99)


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="constant"):
    """Every message takes the same time."""

    ms: float = 50.0

    def table_us(self) -> list[int]:
        return [round(self.ms * 1000)] * TABLE_SIZE


class Uniform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="uniform"):
    """Every time between two bounds is equally likely."""

    min_ms: float = 10.0
    max_ms: float = 100.0

    def table_us(self) -> list[int]:
        step = (self.max_ms - self.min_ms) / TABLE_SIZE
        return [round((self.min_ms + step * (index + 0.5)) * 1000) for index in range(TABLE_SIZE)]


class LongTail(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="long-tail"):
    """As measured on the Internet: most are near the median, a few take very much longer (log-normal)."""

    median_ms: float = 40.0
    p99_ms: float = 400.0

    def table_us(self) -> list[int]:
        spread = math.log(self.p99_ms / self.median_ms) / P99_DEVIATIONS
        normal = NormalDist(math.log(self.median_ms), spread)
        return [round(math.exp(normal.inv_cdf((index + 0.5) / TABLE_SIZE)) * 1000) for index in range(TABLE_SIZE)]


Latency = Constant | Uniform | LongTail
