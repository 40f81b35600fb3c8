"""Pictures of answers. They need matplotlib, the extra `tidings[plots]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidings.errors import InvalidRequest
from tidings_lab.experiments.experiment import Figure
from tidings_lab.experiments.sweep import Value

FORMATS = (".png", ".svg")
INK, PALE, OTHER_RESULTS = "#22303a", "#e7ebee", "#8a949b"
COLOURS = ("#2a6f97", "#d1603d", "#5b8c5a", "#8e6c8a", "#c9a227", "#61a5c2")
MARKERS = "osD^vP"
SIZE_MAX, SIZE_STEP, SIZE_MIN = 8.5, 1.5, 4.0
WIDTH_MAX, WIDTH_STEP, WIDTH_MIN = 3.0, 0.6, 1.2
TICKS_MAX = 10
LABEL_MAX = 32
"""Longer labels stand below each other, not beside."""


def check_target(path: Path) -> None:
    """Raises InvalidRequest, before anything is run, if the picture could not be drawn afterwards."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequest(f"The picture {path.name!r} needs a name that ends in {' or '.join(FORMATS)}.")
    check_matplotlib()


def check_matplotlib() -> None:
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise InvalidRequest(
            "A chart needs matplotlib, which is not installed: pip install '.[plots]' in a checkout, or leave out "
            "--plot and --out."
        ) from error


def draw(figure: Figure, answer: Sequence[dict[str, Value]], paths: Sequence[Path]) -> None:
    """One picture, in as many formats as there are paths."""
    for path in paths:
        check_target(path)
    rows = figure.rows(answer)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(7.5, 4.4), facecolor="white", layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    _draw_lines(axes, figure, rows)
    for beside in figure.beside:
        # Points only: between them nothing is known.
        axes.plot(beside.x, beside.y, "x", color=INK, label=beside.label, markersize=7, zorder=4)
    _set_scales(axes, figure, rows)
    axes.set_xlabel(figure.x_label, color=INK)
    axes.set_ylabel(figure.y_label, color=INK)
    picture.suptitle(figure.title, x=0.01, ha="left", color=INK, fontsize=12.5)
    # Below the axes there is always room, whatever the lines do.
    labels = axes.get_legend_handles_labels()[1]
    columns = 3 if max(map(len, labels)) <= LABEL_MAX else 1
    picture.legend(loc="outside lower left", frameon=False, fontsize=9, ncols=columns)
    axes.grid(color=PALE, zorder=0)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # Text stays text, and the same rows make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidings"}):
        for path in paths:
            picture.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _draw_lines(axes: Any, figure: Figure, rows: Sequence[dict[str, Value]]) -> None:
    groups: dict[Value, list[dict[str, Value]]] = {}
    for row in rows:
        groups.setdefault(row[figure.by] if figure.by is not None else None, []).append(row)
    number = 0
    for group in groups.values():
        for line in figure.lines:
            axes.plot(
                [_number(row[figure.x]) * figure.x_factor for row in group],
                [_number(row[line.field]) * line.factor for row in group],
                "--" if line.is_dashed else "-",
                color=OTHER_RESULTS if line.is_dashed else COLOURS[number % len(COLOURS)],
                marker=None if line.is_dashed else MARKERS[number % len(MARKERS)],
                # Lines that lie on each other are all to be seen.
                markersize=max(SIZE_MAX - SIZE_STEP * number, SIZE_MIN),
                linewidth=max(WIDTH_MAX - WIDTH_STEP * number, WIDTH_MIN),
                label=line.label.format(**group[0]),
                zorder=3,
                clip_on=False,
            )
            number += 1


def _set_scales(axes: Any, figure: Figure, rows: Sequence[dict[str, Value]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    values = sorted({_number(row[figure.x]) * figure.x_factor for row in rows})
    if figure.is_log_x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if figure.is_log_x or len(values) <= TICKS_MAX:
        axes.set_xticks(values)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(plain)
    if figure.is_log_y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        low, high = axes.get_ylim()
        least, most = figure.y_range or (0, 0)
        axes.set_ylim(least if least <= low else min(low, 0), max(high, most))
    axes.yaxis.set_major_formatter(plain)


def _number(value: Value) -> float:
    """What was not measured leaves a gap."""
    return float("nan") if value is None else float(value)
