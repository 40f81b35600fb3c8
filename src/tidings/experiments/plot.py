"""Pictures of rows. They need matplotlib, the extra `tidings[plots]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidings.errors import InvalidRequest
from tidings.experiments.hyparview import FailureRow

FORMATS = (".png", ".svg")
INK, PALE = "#22303a", "#e7ebee"
HEALED, AT_LAST, AT_ONCE = "#2a6f97", "#61a5c2", "#d1603d"


def check_target(path: Path) -> None:
    """Raises InvalidRequest, before anything is run, if the picture could not be drawn afterwards."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidRequest(f"The picture {path.name!r} needs a name that ends in {' or '.join(FORMATS)}.")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise InvalidRequest(
            "A picture needs matplotlib, which is not installed: pip install 'tidings[plots]', or leave out --plot."
        ) from error


def draw_failures(rows: Sequence[FailureRow], path: Path) -> None:
    """The share of live nodes that are reached, against the share of nodes that failed at once."""
    check_target(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: row.failed_share)
    failed = [100 * row.failed_share for row in rows]
    picture = Figure(figsize=(7.5, 4.2), facecolor="white", layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    for label, colour, values in (
        ("published in the second after the failure, two seconds later", AT_ONCE, [r.reached_at_once for r in rows]),
        ("all messages, after recovery", AT_LAST, [r.reached_at_last for r in rows]),
        ("published once the views have healed", HEALED, [r.reached_healed for r in rows]),
    ):
        axes.plot(failed, [100 * value for value in values], "o-", color=colour, label=label, zorder=3)
    axes.set_ylim(0, 103)
    axes.set_xlabel("nodes that fail at once (%)", color=INK)
    axes.set_ylabel("live nodes that a message reaches (%)", color=INK)
    picture.suptitle(f"HyParView and gossip, {rows[0].nodes:,} nodes", x=0.01, ha="left", color=INK, fontsize=12.5)
    axes.legend(loc="lower left", frameon=False, fontsize=9)
    axes.grid(color=PALE, zorder=0)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # Text stays text, and the same rows make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidings"}):
        picture.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
