"""A picture of the figures: how many times better than its target each one is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tidings.errors import InvalidRequest
from tidings_lab.bench.figures import Figure, quantity, target_text

MET, MISSED = "#2a6f97", "#d1603d"
UNJUDGED = "#9aa5ad"
INK, PALE = "#22303a", "#e7ebee"
FORMATS = (".png", ".svg", ".pdf")
MARGIN_MIN, MARGIN_MAX = 0.05, 50.0
TICKS = (0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32)


def check_target(path: Path) -> None:
    """Raises InvalidRequest, before anything is measured, if the picture could not be drawn afterwards."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequest(f"The picture {path.name!r} needs a name that ends in {', '.join(FORMATS)}.")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise InvalidRequest(
            "A chart needs matplotlib, which is not installed: pip install '.[plots]' in a checkout, or drop --plot."
        ) from error


def label_of(figure: Figure) -> str:
    """What a bar is called."""
    return f"{figure.scenario}: {figure.name}"


def text_of(figure: Figure) -> str:
    """What stands beside a bar: what was reached, and the target."""
    assert figure.target is not None
    reached = f"{figure.ratio:.2f} x limit" if figure.target.of_ratio else quantity(figure.value, figure.unit)
    note = ", disturbed" if figure.disturbed else ""
    return f"{reached}   ({target_text(figure)}{note})"


def colour_of(figure: Figure) -> str:
    """Met, missed, or not to be judged."""
    if figure.ok is None:
        return UNJUDGED
    return MET if figure.ok else MISSED


def draw(figures: Sequence[Figure], path: Path) -> None:
    """Draws every figure that has a target as a bar on a logarithmic scale, with the targets at 1."""
    check_target(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    bars = [figure for figure in figures if figure.margin is not None]
    if not bars:
        raise InvalidRequest("None of these scenarios has a target, so there is nothing to draw: choose others.")
    margins = [min(max(figure.margin or 0.0, MARGIN_MIN), MARGIN_MAX) for figure in bars]
    lowest = 2.0 ** math.floor(math.log2(min(0.5, *margins)) - 0.25)
    rightmost = max(2.0, *margins)
    picture = Picture(figsize=(11, 1.5 + 0.4 * len(bars)), facecolor="white", layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    rows = list(range(len(bars)))
    colours = [colour_of(figure) for figure in bars]
    axes.barh(rows, [margin - 1.0 for margin in margins], left=1.0, color=colours, height=0.6, zorder=2)
    axes.set_xscale("log")
    # The texts begin where the bars end, and need about as much room as the longest bar.
    axes.set_xlim(lowest, rightmost * max(8.0, rightmost / lowest) ** 0.65)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(rows, [label_of(figure) for figure in bars], fontsize=9.5)
    axes.axvline(1.0, color=INK, linewidth=1.2, zorder=3)
    axes.annotate(
        "target", (1.0, 1.0), (0, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
        ha="center", va="bottom", color=INK, fontsize=9,
    )  # fmt: skip
    for row, figure, margin in zip(rows, bars, margins, strict=True):
        axes.annotate(
            text_of(figure), (max(margin, 1.0), row), (6, 0), textcoords="offset points",
            ha="left", va="center", color=MISSED if figure.ok is False else INK, fontsize=8.8, zorder=4,
        )  # fmt: skip
    ticks = [tick for tick in TICKS if lowest <= tick <= rightmost * 1.2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("times better than the target; left of 1 it is missed", color=INK, loc="left", fontsize=9.5)
    picture.suptitle("tidings bench: figures against their targets", x=0.01, ha="left", color=INK, fontsize=12.5)
    axes.grid(axis="x", color=PALE, zorder=0)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # Text stays text, and the same figures make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidings"}):
        picture.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
