"""The table, the JSON and the picture."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from tidings.errors import InvalidRequest
from tidings_lab.bench import plot, report
from tidings_lab.bench.figures import Figure, Limit, at_least, at_most, ratio_at_most
from tidings_lab.bench.plan import QUICK

FIGURES = [
    Figure(scenario="publish", name="put_many", value=2.4e6, unit="messages/s", target=at_least(2e6)),
    Figure(
        scenario="put",
        name="p50",
        value=4e-4,
        unit="s",
        limit=Limit("echo + fdatasync", 2e-4),
        target=ratio_at_most(1.6),
    ),
    Figure(scenario="put", name="p99", value=9e-4, unit="s"),
    Figure(scenario="backlog", name="memory", value=2e8, unit="B", target=at_most(4e8)),
]
LIMITS = [Figure(scenario="machine", name="memory copy", value=6e9, unit="B/s")]


def printed(figures: list[Figure] = FIGURES) -> list[str]:
    output = io.StringIO()
    report.print_report(figures, LIMITS, output)
    return output.getvalue().splitlines()


def test_table_has_figure_limit_ratio_target_and_verdict() -> None:
    lines = printed()
    [put] = [line for line in lines if "p50" in line]
    for part in ("put", "400 us", "200 us", "echo + fdatasync", "2.00", "at most 1.6 x limit", "below"):
        assert part in put
    [memory] = [line for line in lines if "memory " in line and "copy" not in line]
    assert memory.rstrip().endswith("ok")
    assert any("memory copy" in line and "6.00 GB/s" in line for line in lines)
    assert lines[-1] == "2 of 3 targets are met."


def test_columns_are_aligned() -> None:
    header, *rows = printed()[:5]
    at = header.index("target")
    assert [row[at : at + 8] for row in rows if "at most" in row or "at least" in row] == [
        "at least",
        "at most ",
        "at most ",
    ]


def test_scenario_is_named_once() -> None:
    assert sum(line.startswith("put ") for line in printed()) == 1


def test_disturbed_figure_is_neither_met_nor_missed() -> None:
    disturbed = [msgspec.structs.replace(figure, others=0.6) for figure in FIGURES]
    lines = printed(disturbed)
    verdicts = [line.split()[-1] for line in lines if "at least" in line or "at most" in line]
    assert verdicts == ["disturbed"] * 3
    assert "0 of 3 targets are met. 3 could not be judged." in lines
    assert "publish 60%, put 60%, backlog 60%" in " ".join(lines)
    assert all(figure.ok is None for figure in disturbed)
    assert plot.colour_of(disturbed[0]) not in (plot.MET, plot.MISSED)


def test_closing_line_without_targets() -> None:
    assert report.closing_line(LIMITS) == "There is no target among these figures."


def test_json_is_complete() -> None:
    text = report.as_json(FIGURES, LIMITS, QUICK, {"put": {"p50": [1.0]}}, {"filesystem": "ext4"}, "0.1.0")
    found = json.loads(text)
    assert [each["name"] for each in found["figures"]] == ["put_many", "p50", "p99", "memory"]
    assert [each["ok"] for each in found["figures"]] == [True, False, None, True]
    assert found["plan"]["rounds"] == QUICK.rounds
    assert found["machine"]["filesystem"] == "ext4"
    assert found["raw"] == {"put": {"p50": [1.0]}}


def test_json_goes_to_the_output_or_into_a_file(tmp_path: Path) -> None:
    output = io.StringIO()
    report.write_json("-", "{}\n", output)
    report.write_json(str(tmp_path / "figures.json"), "{}\n", output)
    assert output.getvalue() == "{}\n"
    assert (tmp_path / "figures.json").read_text() == "{}\n"


def test_page_gets_the_figures_between_its_marks() -> None:
    text = report.as_markdown(FIGURES, LIMITS)
    page = f"# Title\n{report.BEGIN}\nold\n{report.END}\nThe end.\n"
    once = report.put_between_marks(page, text)
    assert report.put_between_marks(once, text) == once
    assert "old" not in once
    assert once.startswith("# Title\n")
    assert once.endswith("The end.\n")
    assert "| put | p50 | 400 us | 200 us (echo + fdatasync) | 2.00 | at most 1.6 x limit | below |" in once
    with pytest.raises(InvalidRequest, match="no place"):
        report.put_between_marks("# Title", text)


def test_progress_without_a_terminal_names_each_scenario_once() -> None:
    output = io.StringIO()
    with report.progress({"publish": 2, "put": 1}, output) as notice:
        for scenario, what in (("publish", "round 1"), ("publish", "round 2"), ("publish", ""), ("put", "round 1")):
            notice(scenario, what)
    assert output.getvalue().splitlines() == ["publish ...", "put ..."]


@pytest.mark.parametrize("name", ["figures.png", "figures.svg"])
def test_picture_is_drawn(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(FIGURES, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    assert len(data) > 5_000


def test_picture_needs_a_format_and_a_target(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"\.png"):
        plot.check_target(tmp_path / "figures.bmp")
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidRequest, match="nothing to draw"):
        plot.draw(LIMITS, tmp_path / "figures.png")


def test_missing_matplotlib_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InvalidRequest, match=r"\.\[plots\]"):
        plot.check_target(Path("figures.png"))


def test_bar_says_what_was_reached_and_what_was_wanted() -> None:
    assert plot.text_of(FIGURES[1]) == "2.00 x limit   (at most 1.6 x limit)"
    assert plot.label_of(FIGURES[1]) == "put: p50"
