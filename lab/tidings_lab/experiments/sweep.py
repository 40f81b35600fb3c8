"""A sweep: a function, the points of a grid to call it with, and the tables that its rows go to.

Each call is a task that depends on nothing but its point. So it does not matter where it runs, in which order, in
company of which others, or how often: a task that is lost with its machine is repeated and gives the same rows. A call
that raises becomes a row of the table `errors`; the others go on.

`local.py` runs a sweep in processes of this machine, `on_spark.py` as tasks of a Spark cluster; both give the same
tables.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import msgspec

from tidings.errors import InvalidRequest
from tidings_lab.experiments.table import columns_of, union_of

Value = int | float | str | bool | None
Point = Mapping[str, Value]
Watch = Callable[[int], None]
"""Is told now and then how many points are done."""

ERRORS = "errors"


class ErrorRow(msgspec.Struct, frozen=True):
    """A call that raised."""

    parameters: str
    """The point, as JSON."""
    error: str


class Grid(Sequence[Point]):
    """Every combination of the values of some axes; the last axis runs fastest. It takes no room.

    >>> list(Grid(nodes=[10, 20], seed=range(2)))
    [{'nodes': 10, 'seed': 0}, {'nodes': 10, 'seed': 1}, {'nodes': 20, 'seed': 0}, {'nodes': 20, 'seed': 1}]
    """

    def __init__(self, **axes: Sequence[Value]) -> None:
        self._axes = axes

    def __len__(self) -> int:
        return math.prod(len(values) for values in self._axes.values())

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> list[Point]: ...
    def __getitem__(self, index: int | slice) -> Point | list[Point]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        point: dict[str, Value] = {}
        for name, values in reversed(self._axes.items()):
            index, place = divmod(index, len(values))
            point[name] = values[place]
        return {name: point[name] for name in self._axes}


@dataclass(frozen=True)
class Sweep:
    """What is to be run, and the tables that come of it.

    `function` must be one that a module has by its name: tasks in other processes import it.
    """

    name: str
    function: Callable[..., Iterable[msgspec.Struct]]
    tables: Mapping[str, type[msgspec.Struct]]
    points: Sequence[Point]

    def __post_init__(self) -> None:
        name = self.function.__qualname__
        if getattr(sys.modules.get(self.function.__module__), name, None) is not self.function:
            raise InvalidRequest(f"{name} cannot be imported by other processes: make it a function of a module.")
        union_of(self.columns.values())

    @property
    def columns(self) -> dict[str, dict[str, type]]:
        """The columns of every table. `point` says which call a row is of."""
        tables: dict[str, type[msgspec.Struct]] = {**self.tables, ERRORS: ErrorRow}
        return {name: {"point": int, **columns_of(kind)} for name, kind in tables.items()}


class Found(msgspec.Struct, frozen=True):
    """A row and the table that it belongs to."""

    table: str
    row: dict[str, object]


def run_point(sweep: Sweep, index: int) -> list[Found]:
    """The rows of one point, or the row that says why there are none."""
    tables = {kind: name for name, kind in sweep.tables.items()}
    point = sweep.points[index]
    try:
        return [_found(tables[type(row)], index, row) for row in sweep.function(**point)]
    except Exception as error:  # noqa: BLE001 - one broken point must not cost the others.
        where = traceback.extract_tb(error.__traceback__)[-1]
        file = where.filename.rpartition("/")[2]
        text = f"{type(error).__name__}: {error} (in {where.name}, line {where.lineno} of {file})"
        return [_found(ERRORS, index, ErrorRow(msgspec.json.encode(dict(point)).decode(), text))]


def _found(table: str, index: int, row: msgspec.Struct) -> Found:
    return Found(table, {"point": index, **msgspec.structs.asdict(row)})


def points_of_task(sweep: Sweep, task: int, tasks: int) -> range:
    """The points of a task: every so-manieth, because neighbours are about equally large."""
    return range(task, len(sweep.points), tasks)


class Tables(Protocol):
    """The tables of a sweep that has been run."""

    def query(self, text: str) -> list[dict[str, Value]]:
        """The rows of a query in SQL, in which `{name}` stands for a table. `percentile(x, share)`, `stddev_pop(x)` and
        `if(condition, x, y)` may be used. Write 100e0, not 100.0, which is a decimal to Spark.
        """

    def close(self) -> None:
        """Lets go of what is kept in memory; Parquet stays."""


class Engine(Protocol):
    """Where sweeps run."""

    def run(self, sweep: Sweep, folder: str | None, watch: Watch) -> Tables:
        """Runs all points. With a folder each table becomes Parquet there, in place of what had its name before."""
