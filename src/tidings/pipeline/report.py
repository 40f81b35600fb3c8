"""A page with the figures of gold: one HTML file with its pictures inside, to be opened or sent as it is."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.errors import InvalidRequest
from tidings.pipeline.lake import Lake
from tidings.pipeline.status import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOPICS_DRAWN = 8
WORDS_SHOWN = 10
INK, PALE = "#22303a", "#e7ebee"
COLOURS = ("#2a6f97", "#d1603d", "#61a5c2", "#6a994e", "#9d4edd", "#bc8034", "#52796f", "#9aa5ad")
PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #22303a; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #e7ebee; }}
th:first-child, td:first-child {{ text-align: left; overflow-wrap: anywhere; }}
svg {{ max-width: 100%; height: auto; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


class TopicFigures(msgspec.Struct, frozen=True):
    """A topic over all of its windows; the latencies are those of its worst window."""

    topic: str
    messages: int
    rate_max: float
    size_bytes: int
    size_max: int
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    backwards: int
    words: tuple[tuple[str, int], ...]


def write_report(lake: Lake, found: Status, path: Path) -> None:
    """Writes the page."""
    windows = lake.table("gold").open().to_pyarrow_table().sort_by("window_start").to_pylist()
    if not windows:
        raise InvalidRequest(f"There is nothing in gold to report: `tidings pipeline run --lake {lake.folder}` first.")
    figures = sum_topics(windows)
    body = "\n".join(
        [
            f"<p>{_text(_span(windows))}, in windows of {lake.manifest().window_s} s.</p>",
            _table(
                ("table", "rows", "files", "bytes"),
                [(t.name, f"{t.rows:,}", f"{t.files:,}", f"{t.size_bytes:,}") for t in found.tables],
            ),
            _remarks(found),
            "<h2>Messages a second</h2>",
            _picture(windows, figures, "rate", "messages/s"),
            "<h2>Latency, from publisher to broker (99 of 100 messages are faster)</h2>",
            _picture(windows, figures, "latency_p99_ms", "ms"),
            "<h2>Topics</h2>",
            _topic_table(figures),
            "<h2>Words</h2>",
            _table(("topic", "most frequent words"), [(each.topic, _words(each)) for each in figures]),
        ]
    )
    path.write_text(PAGE.format(title=f"The lake {_text(lake.folder.name)}", body=body), encoding="utf-8")


def sum_topics(windows: Sequence[dict[str, Any]]) -> list[TopicFigures]:
    """The windows of each topic together, the busiest topic first."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for window in windows:
        by_topic.setdefault(window["topic"], []).append(window)
    found = [_topic(topic, rows) for topic, rows in by_topic.items()]
    return sorted(found, key=lambda each: (-each.messages, each.topic))


def _topic(topic: str, rows: Sequence[dict[str, Any]]) -> TopicFigures:
    words: Counter[str] = Counter()
    for row in rows:
        words.update({each["word"]: each["count"] for each in row["top_words"] or []})
    return TopicFigures(
        topic,
        messages=sum(row["messages"] for row in rows),
        rate_max=max(row["rate"] for row in rows),
        size_bytes=sum(row["size_bytes"] for row in rows),
        size_max=max(row["size_max"] for row in rows),
        latency_p50_ms=_worst(rows, "latency_p50_ms"),
        latency_p99_ms=_worst(rows, "latency_p99_ms"),
        backwards=sum(row["backwards"] for row in rows),
        words=tuple(words.most_common(WORDS_SHOWN)),
    )


def _worst(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """The greatest, None if the broker did not yet keep times when the messages were stored."""
    return max((row[name] for row in rows if row[name] is not None), default=None)


def _span(windows: Sequence[dict[str, Any]]) -> str:
    begin: datetime = windows[0]["window_start"]
    end: datetime = max(window["window_end"] for window in windows)
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"


def _remarks(found: Status) -> str:
    remarks = [f"{count:,} rejected: {reason}" for reason, count in found.rejected.items()]
    remarks.append(f"{found.backwards:,} with a time before an earlier one of their publisher")
    if found.late is not None:
        remarks.append(f"{found.late:,} too late for their window")
    skipped = sum(topic.skipped for topic in found.topics)
    if skipped:
        remarks.append(f"{skipped:,} removed by the bus before they were read")
    if found.audit is not None:
        remarks.append(
            f"last audit {found.audit.begun_at:%Y-%m-%d %H:%M} UTC: {'clean' if found.audit.clean else 'NOT CLEAN'}"
        )
    return f"<p>{_text('; '.join(remarks))}.</p>"


def _topic_table(figures: Sequence[TopicFigures]) -> str:
    head = ("topic", "messages", "peak/s", "bytes", "mean size", "largest", "p50 ms", "p99 ms", "out of order")
    rows = [
        (
            each.topic,
            f"{each.messages:,}",
            f"{each.rate_max:,.1f}",
            f"{each.size_bytes:,}",
            f"{each.size_bytes / each.messages:,.0f}",
            f"{each.size_max:,}",
            "" if each.latency_p50_ms is None else f"{each.latency_p50_ms:,.1f}",
            "" if each.latency_p99_ms is None else f"{each.latency_p99_ms:,.1f}",
            f"{each.backwards:,}",
        )
        for each in figures
    ]
    return _table(head, rows)


def _words(figures: TopicFigures) -> str:
    return ", ".join(f"{word} ({count:,})" for word, count in figures.words)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(kind: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{kind}>{_text(cell)}</{kind}>' for cell in cells)}</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"


def _text(text: str) -> str:
    return html.escape(text)


def _picture(windows: Sequence[dict[str, Any]], figures: Sequence[TopicFigures], column: str, label: str) -> str:
    """A line for each of the busiest topics, as SVG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.2), facecolor="white", layout="constrained")
    FigureCanvasAgg(picture)
    axes: Axes = picture.add_subplot()
    for colour, each in zip(COLOURS, figures[:TOPICS_DRAWN], strict=False):
        rows = [row for row in windows if row["topic"] == each.topic and row[column] is not None]
        name = each.topic.replace("$", r"\$")  # Between two of them matplotlib would see a formula.
        axes.plot(
            [row["window_start"] for row in rows], [row[column] for row in rows], "o-", ms=3, color=colour, label=name
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label, color=INK)
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    axes.grid(color=PALE, zorder=0)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    drawn = io.StringIO()
    # Text stays text, and the same rows make the same picture.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidings"}):
        picture.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue().partition("<svg")[1] + drawn.getvalue().partition("<svg")[2]
