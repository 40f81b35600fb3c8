"""Sweeps give the same tables however they are run (P11, D5)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest

from tests.unit.experiments.made_up import TABLES, squares
from tidings.errors import InvalidRequest
from tidings.simulator.worlds import run_seed, worlds
from tidings_lab.bugs import MUTANTS
from tidings_lab.experiments.local import LocalEngine, LocalTables
from tidings_lab.experiments.simulations import seeds_sweep, sum_up
from tidings_lab.experiments.sweep import Grid, Sweep
from tidings_lab.experiments.table import columns_of


def sweep_of(count: int) -> Sweep:
    return Sweep("squares", squares, TABLES, Grid(number=range(count), name=["ann", None]))


def run(sweep: Sweep, jobs: int = 1, folder: Path | None = None) -> LocalTables:
    return LocalEngine(jobs).run(sweep, None if folder is None else str(folder), lambda done: None)


def test_a_grid_is_every_combination() -> None:
    grid = Grid(a=[1, 2], b=["x", "y", "z"])
    assert len(grid) == 6
    assert [point["b"] for point in grid] == ["x", "y", "z"] * 2
    assert grid[-1] == {"a": 2, "b": "z"} == grid[2:][-1]
    with pytest.raises(IndexError):
        grid[6]


def test_rows_do_not_depend_on_the_number_of_processes() -> None:
    one, two = (run(sweep_of(12), jobs) for jobs in (1, 2))
    for table in ("squares", "steps", "errors"):
        question = f"select * from {{{table}}} order by point"
        assert one.query(question) == two.query(question)
    assert one.query("select count(*) as n, sum(square) as s from {squares}") == [{"n": 24, "s": 2 * 506}]
    assert one.query("select count(*) as n from {steps}") == [{"n": 2 * (0 + 1 + 2 + 3) * 3}]


def test_a_point_that_raises_is_a_row_and_the_others_go_on() -> None:
    tables = run(sweep_of(15))
    errors = tables.query("select * from {errors} order by point")
    assert [error["point"] for error in errors] == [26, 27]
    assert errors[0]["parameters"] == '{"number":13,"name":"ann"}'
    assert str(errors[0]["error"]).startswith("ValueError: thirteen is not liked (in squares, line ")
    assert tables.query("select count(*) as n from {squares}") == [{"n": 28}]


def test_the_progress_is_told() -> None:
    told: list[int] = []
    LocalEngine(1).run(sweep_of(3), None, told.append)
    assert told == [1, 2, 3, 4, 5, 6]


def test_tables_are_typed_parquet(tmp_path: Path) -> None:
    run(sweep_of(4), folder=tmp_path)
    table = pyarrow.parquet.read_table(tmp_path / "squares")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds == {"point": "int64", "number": "int64", "square": "int64", "half": "double", "name": "string"}
    assert table.num_rows == 8 and table["name"].null_count == 4
    assert pyarrow.parquet.read_table(tmp_path / "steps").schema.field("is_last").type == "bool"
    assert pyarrow.parquet.read_table(tmp_path / "errors").num_rows == 0
    run(sweep_of(2), folder=tmp_path)
    assert pyarrow.parquet.read_table(tmp_path / "squares").num_rows == 4, "a sweep takes the place of the one before"


def test_percentiles_and_deviations_without_spark() -> None:
    [row] = run(sweep_of(5)).query(
        "select percentile(square, 0.5) as p50, percentile(square, 0.9) as p90, stddev_pop(square) as deviation,"
        " sum(if(name is null, 1, 0)) as nameless, percentile(if(number > 99, 1, null), 0.5) as none_at_all"
        " from {squares}"
    )
    assert row["p50"] == 4.0
    assert row["p90"] == pytest.approx(16.0)
    assert row["deviation"] == pytest.approx(5.8992, abs=1e-4)
    assert (row["nameless"], row["none_at_all"]) == (5, None)


def test_what_other_processes_could_not_import_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="make it a function of a module"):
        Sweep("lambda", lambda number: [], {}, [])


def test_only_spark_writes_to_other_places() -> None:
    with pytest.raises(InvalidRequest, match="name one, or run it on Spark"):
        LocalEngine().run(sweep_of(1), "hdfs://lake/squares", lambda done: None)


class Nested(msgspec.Struct):
    rows: list[int]


class Textual(msgspec.Struct):
    number: str


def test_rows_that_make_no_table_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"Nested\.rows is no column"):
        columns_of(Nested)
    with pytest.raises(InvalidRequest, match="The column number has two types"):
        Sweep("squares", squares, {**TABLES, "texts": Textual}, [])


@pytest.mark.parametrize("world", worlds())
def test_seeds_of_every_world_are_rows(world: str) -> None:
    """D5: what a sweep says of a seed is what the simulator says of it."""
    tables = run(seeds_sweep(7, 1, world))
    [row] = tables.query("select * from {runs}")
    alone = run_seed(7, world=world)
    assert (row["seed"], row["world"], row["invariant"], row["replay"]) == (7, world, None, None)
    assert (row["events"], row["virtual_ms"]) == (alone.events, alone.virtual_ms)
    summary = sum_up(tables, 10)
    assert (summary.seeds, summary.broken, summary.raised, summary.failures) == (1, 0, 0, [])


@pytest.mark.parametrize("mutant", ["same-epoch", "crowded", "join-with-one-successor"])
def test_a_planted_bug_comes_back_with_its_replay_command(mutant: str) -> None:
    """D5, in a world with a broker, in an overlay and in a ring."""
    summary = sum_up(run(seeds_sweep(0, 4, MUTANTS[mutant].world, mutant)), 2)
    assert summary.broken > 0 and len(summary.failures) <= 2
    failure = summary.failures[0]
    assert failure["invariant"] in MUTANTS[mutant].rules
    assert failure["replay"] == f"tidings simulate --seed {failure['seed']} --mutant {mutant} --trace"
