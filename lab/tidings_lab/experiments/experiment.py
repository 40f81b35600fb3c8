"""An experiment as data: what is run, what is asked of the tables, and how the answers are shown.

The runs are a sweep, and each writes its rows to plain tables. Everything in a report is the answer to a question in
SQL about these tables, so that anyone who doubts a figure can ask for it again. The questions keep to what both Spark
and SQLite understand (`sweep.Tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tidings_lab.experiments.sweep import Engine, Point, Sweep, Tables, Value, Watch

Answers = dict[str, list[dict[str, Value]]]
"""The rows of each question, by its name."""


class Choice(msgspec.Struct, frozen=True):
    """What the user wants otherwise than usual; None is as usual."""

    nodes: tuple[int, ...] | None = None
    shares: tuple[float, ...] | None = None
    first_seed: int = 1
    seeds: int | None = None
    messages: tuple[int, ...] | None = None
    """Of each node."""
    is_small: bool = False
    """Only enough to see that it works, where the usual takes minutes."""

    def loads(self, usual: Iterable[int]) -> list[int]:
        return list(self.messages or usual)

    def sizes(self, usual: Iterable[int]) -> list[int]:
        return list(self.nodes or usual)

    def seeds_for(self, nodes: int) -> range:
        """Large worlds differ less from seed to seed, and take longer."""
        count = self.seeds or (3 if nodes < 1_000 else 1)
        return range(self.first_seed, self.first_seed + count)


class Question(msgspec.Struct, frozen=True):
    """Something asked of the tables, and how the answer is laid out."""

    name: str
    title: str
    sql: str
    columns: tuple[tuple[str, str], ...]
    """(heading, format of a row): ("reached", "{reached:.2%}")"""
    is_for_figures: bool = False
    """Whether it is only drawn: many rows that nobody wants to read."""


class Line(msgspec.Struct, frozen=True):
    """A column of an answer as a line of a figure. `label` may name columns: "{nodes:,} nodes"."""

    field: str
    label: str
    factor: float = 1.0
    is_dashed: bool = False


class Beside(msgspec.Struct, frozen=True):
    """Points from elsewhere, drawn beside ours."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


class Figure(msgspec.Struct, frozen=True):
    """One picture of an answer. With `by` there is a line for each value of that column."""

    name: str
    title: str
    question: str
    x: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    by: str | None = None
    x_factor: float = 1.0
    is_log_x: bool = False
    is_log_y: bool = False
    y_range: tuple[float, float] | None = None
    """At least, if nothing lies outside; otherwise from 0."""
    beside: tuple[Beside, ...] = ()
    where: Mapping[str, tuple[Value, ...]] = {}
    """Only rows with one of these values. If there are none, there is no such picture."""

    def rows(self, answer: Sequence[dict[str, Value]]) -> list[dict[str, Value]]:
        """Those of the answer that are drawn."""
        return [row for row in answer if all(row[name] in values for name, values in self.where.items())]


class Experiment(msgspec.Struct, frozen=True):
    """What is measured, and against what."""

    name: str
    title: str
    about: str
    """One line for the list of experiments."""
    setting: str
    """How it was run: a paragraph of the report."""
    function: Callable[..., Iterable[msgspec.Struct]]
    tables: Mapping[str, type[msgspec.Struct]]
    points: Callable[[Choice], Sequence[Point]]
    questions: tuple[Question, ...]
    figures: tuple[Figure, ...]
    other_results: str
    """What the document or the papers report: a paragraph of the report."""
    broken: str | None = None
    """A question whose answer should be empty: `what` and `text` of each run that broke a rule."""

    def sweep(self, choice: Choice) -> Sweep:
        return Sweep(self.name, self.function, self.tables, self.points(choice))


class Outcome(msgspec.Struct, frozen=True):
    """What came of an experiment."""

    answers: Answers
    broken: list[str]
    """A sentence for each run that broke a rule or raised."""


def run_experiment(experiment: Experiment, choice: Choice, engine: Engine, folder: str | None, watch: Watch) -> Outcome:
    """Runs the simulations and asks all questions. With a folder the tables stay there."""
    tables = engine.run(experiment.sweep(choice), folder, watch)
    try:
        return ask(experiment, tables)
    finally:
        tables.close()


def ask(experiment: Experiment, tables: Tables) -> Outcome:
    answers = {question.name: tables.query(question.sql) for question in experiment.questions}
    broken = [f"{row['parameters']}: {row['error']}" for row in tables.query("select * from {errors} order by point")]
    if experiment.broken is not None:
        broken += [f"{row['what']}: {row['text']}" for row in tables.query(experiment.broken)]
    return Outcome(answers, broken)
