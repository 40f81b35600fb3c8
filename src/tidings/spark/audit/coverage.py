"""What each subscription should have been given, from what its records say of themselves. Nothing here knows Spark.

An exclusive subscription covers its topic from where its first recorded session began to the furthest point that it
was given or had acknowledged. The sessions of a client are put in order by their epochs, not by clocks. Of a group it
is not known where it began: it covers the topic from the lowest offset that any member was given to the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidings.spark.audit.frames import Ranges, wanted
from tidings.spark.audit.records import Name


@dataclass
class Covered:
    """One subscription to one topic."""

    name: Name
    number: int
    start: int
    end: int
    rows: int
    plain: bool
    """All deliveries are first attempts, and none came back."""
    in_order: bool
    """Its deliveries are known to have come in order, without a look at each of them."""
    sessions: int
    unended: int
    """Sessions that did not say that they ended."""
    uncertain: list[tuple[int, int]] = field(default_factory=list)
    """Offsets whose records may have gone with a power cut."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.name[2]

    @property
    def shown(self) -> str:
        """The name in reports."""
        return f"group {self.name[0]}" if self.name[1] else self.name[0]

    def clip(self, held: tuple[int, int], complete: bool, start: int | None) -> None:
        """Only what is still there can be compared; `complete` and `start` say what should have been covered."""
        first, next_offset = held
        self.end = next_offset if complete else min(self.end, next_offset)
        self.start = max(first, self.start if start is None else start)
        self.end = max(self.start, self.end)


class _Session:
    """One session's part in one subscription, put together from its files in their order."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        ordered = sorted(rows, key=lambda row: row["number"])
        self.client = ordered[0]["client"]
        self.epoch = ordered[0]["epoch"]
        self.boot = ordered[0]["boot"]
        self.ended = any(row["ended"] for row in ordered)
        self.rows = sum(row["rows"] for row in ordered)
        self.plain = all(row["plain"] for row in ordered)
        stands = [row[name] for row in ordered for name in ("stands_low", "stands_high") if row[name] is not None]
        lows = [row["low"] for row in ordered if row["low"] is not None]
        highs = [row["high"] for row in ordered if row["high"] is not None]
        self.began = min([*stands, *lows])
        self.low, self.high = min(lows, default=None), max(highs, default=-1)
        at = self.began
        for row in ordered:
            if row["at"] is not None:
                # A file that hands nothing out can only take back.
                at = row["at"] if row["rows"] else min(at, row["at"])
        self.end = max([at, *stands])
        rising = all(row["rising"] for row in ordered)
        self.rising = rising and all(
            later["low"] is None or earlier["high"] is None or later["low"] > earlier["high"]
            for earlier, later in pairwise(ordered)
        )


def coverage(about: Iterable[Mapping[str, Any]], topics: Sequence[str] = ()) -> list[Covered]:
    """The subscriptions that the records speak of, in order."""
    files: dict[Name, dict[str, list[Mapping[str, Any]]]] = {}
    for row in about:
        if wanted(row["topic"], topics):
            name: Name = (row["subscription"], row["group"], row["topic"])
            files.setdefault(name, {}).setdefault(row["session"], []).append(row)
    found = []
    for number, (name, by_session) in enumerate(sorted(files.items())):
        sessions = sorted(map(_Session, by_session.values()), key=lambda each: each.epoch)
        found.append(_covered(name, number, sessions))
    return found


def _covered(name: Name, number: int, sessions: list[_Session]) -> Covered:
    group = name[1]
    plain = all(each.plain for each in sessions)
    rising = all(each.rising for each in sessions)
    busy = [each for each in sessions if each.low is not None]
    follows = all(later.low is not None and later.low > earlier.high for earlier, later in pairwise(busy))
    lows = [each.low for each in busy if each.low is not None]
    start = min(lows, default=0) if group else min(each.began for each in sessions)
    end = max((each.high + 1 for each in busy), default=start) if group else max(each.end for each in sessions)
    covered = Covered(
        name,
        number,
        start,
        end,
        rows=sum(each.rows for each in sessions),
        plain=plain,
        in_order=plain and rising and follows and (not group or len(busy) == 1),
        sessions=len(sessions),
        unended=sum(not each.ended for each in sessions),
    )
    for client in dict.fromkeys(each.client for each in sessions):
        own = [each for each in sessions if each.client == client]
        for earlier, later in pairwise(own):
            if not earlier.ended and (not earlier.boot or earlier.boot != later.boot):
                # On the same boot whatever was written is there; after a restart of the machine it may not be.
                covered.uncertain.append((start, end) if group else (earlier.end, later.began))
    return covered


def spans(subscriptions: Iterable[Covered]) -> Ranges:
    """From where to where each topic is covered by any of them."""
    found: dict[str, tuple[int, int]] = {}
    for each in subscriptions:
        low, high = found.get(each.topic, (each.start, each.end))
        found[each.topic] = (min(low, each.start), max(high, each.end))
    return found
