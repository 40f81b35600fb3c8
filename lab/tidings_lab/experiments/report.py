"""What an experiment leaves behind for people: a page, its tables as CSV, and its figures as PNG and SVG."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from tidings_lab.experiments.experiment import Experiment, Figure, Outcome, Question
from tidings_lab.experiments.plot import FORMATS, draw
from tidings_lab.experiments.sweep import Value


def write_report(experiment: Experiment, outcome: Outcome, folder: Path, command: str, tables: str | None) -> Path:
    """Writes `NAME.md` and what it shows into the folder, and returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for question in experiment.questions:
        _write_csv(outcome.answers[question.name], folder / f"{experiment.name}-{question.name}.csv")
    for figure in drawn(experiment, outcome):
        paths = [folder / f"{experiment.name}-{figure.name}{suffix}" for suffix in FORMATS]
        draw(figure, outcome.answers[figure.question], paths)
    page = folder / f"{experiment.name}.md"
    page.write_text("\n".join(_page(experiment, outcome, command, tables)), encoding="utf-8")
    return page


def _page(experiment: Experiment, outcome: Outcome, command: str, tables: str | None) -> list[str]:
    lines = [f"# {experiment.title}", "", experiment.setting, "", f"`{command}`"]
    if outcome.broken:
        lines += ["", "**Some runs broke a rule:**", "", *(f"- {sentence}" for sentence in outcome.broken)]
    for question in experiment.questions:
        rows = outcome.answers[question.name]
        lines += ["", f"## {question.title}"]
        lines += ["", *markdown_table(question, rows)] if not question.is_for_figures else []
        for figure in drawn(experiment, outcome):
            if figure.question == question.name:
                lines += ["", f"![{figure.title}]({experiment.name}-{figure.name}.svg)"]
        lines += ["", f"As [CSV]({experiment.name}-{question.name}.csv)."]
    lines += ["", "## Elsewhere", "", experiment.other_results]
    if tables is not None:
        names = ", ".join(f"`{name}`" for name in experiment.tables)
        lines += ["", f"The rows of every run are Parquet in `{tables}`: {names}. `point` is the number of the run."]
    return [*lines, ""]


def drawn(experiment: Experiment, outcome: Outcome) -> list[Figure]:
    """The figures for which there are rows."""
    return [figure for figure in experiment.figures if figure.rows(outcome.answers[figure.question])]


def markdown_table(question: Question, rows: Sequence[dict[str, Value]]) -> list[str]:
    """Headings, and the rows in their formats."""
    headings = [heading for heading, _ in question.columns]
    lines = [f"| {' | '.join(headings)} |", f"|{'---:|' * len(headings)}"]
    return [*lines, *(f"| {' | '.join(cells)} |" for cells in _cells(question, rows))]


def plain_table(question: Question, rows: Sequence[dict[str, Value]]) -> list[str]:
    """The same for a terminal: columns of even width, a line of headings above them that may be several words high."""
    cells = _cells(question, rows)
    headings = [
        _folded(heading, [row[column] for row in cells]) for column, (heading, _) in enumerate(question.columns)
    ]
    height = max(map(len, headings))
    padded = [[""] * (height - len(heading)) + heading for heading in headings]
    lines = [[heading[line] for heading in padded] for line in range(height)] + cells
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines]


def _folded(heading: str, cells: list[str]) -> list[str]:
    """A heading in lines that are not much wider than its column."""
    width = max([10, *map(len, cells)])
    lines = [""]
    for word in heading.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _cells(question: Question, rows: Sequence[dict[str, Value]]) -> list[list[str]]:
    shown = [{name: Nothing() if value is None else value for name, value in row.items()} for row in rows]
    return [[form.format(**row) for _, form in question.columns] for row in shown]


class Nothing:
    """An empty cell, whatever the format: a run that broke early has not measured everything."""

    def __format__(self, _: str) -> str:
        return "-"


def _write_csv(rows: Sequence[dict[str, Value]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
