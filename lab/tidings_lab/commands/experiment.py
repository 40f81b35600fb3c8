"""`tidings experiment NAME`: simulations with parameters; their figures as tables, pictures and a page."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.cli.output import print_json
from tidings.cli.progress import progress_bar
from tidings.errors import InvalidRequest
from tidings_lab.commands import processes
from tidings_lab.commands.engines import engine_for, lake_folder
from tidings_lab.experiments.catalogue import EXPERIMENTS, WITH_PROCESSES

if TYPE_CHECKING:
    from tidings_lab.experiments.experiment import Choice, Experiment, Outcome
    from tidings_lab.experiments.sweep import Engine

ALL = "all"
PROCESSES = "processes"
HELP = "Runs an experiment in the simulator: its runs are Spark tasks, and Spark SQL turns their rows into figures.\n\n"
HELP += "".join(f"  {experiment.name:<19}{experiment.about}\n" for experiment in EXPERIMENTS.values())
HELP += f"  {ALL:<19}all of these\n"
HELP += "".join(f"  {experiment.name:<19}{experiment.about}\n" for experiment in WITH_PROCESSES.values())
HELP += f"  {PROCESSES:<19}no simulation: nodes of an overlay as processes, over ZeroMQ, some of them killed\n"

EXAMPLES = """\
  tidings experiment hyparview                                  # 1,000 nodes, 10 to 90 % of them fail
  tidings experiment hyparview --nodes 10000 --share 0.8        # a minute or so
  tidings experiment all --out report/                          # pages, charts and the rows of every run
  tidings experiment load --no-spark --json                     # in processes of this machine
  tidings experiment lookups --plot hops.svg
  tidings experiment reliability --seeds 100 --master spark://10.0.0.1:7077 --lake /mnt/lake --out report/
  tidings experiment processes --overlay chord --nodes 20 --messages 10 --kill 5
  tidings experiment service --out report/                      # rings of 6, 12 and 18 processes: some minutes
  tidings experiment service --small
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = (*EXPERIMENTS, ALL, *WITH_PROCESSES, PROCESSES)
    parser.add_argument("name", metavar="NAME", choices=names, help=f"the experiment: {', '.join(names)}")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=_nodes,
        action="append",
        help="how many nodes, instead of the usual sizes; repeatable",
    )
    parser.add_argument(
        "--share",
        metavar="S",
        type=_share,
        action="append",
        help="the share of nodes that fail, 0 to 0.95 (default: 0.1 to 0.9)",
    )
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument(
        "--seeds", metavar="N", type=_count, help="runs of each kind, with different seeds (default: 1 to 3)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each row of figures")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write a page, charts and CSV there")
    parser.add_argument(
        "--lake", metavar="DIR", help="write the rows of every run to DIR/experiments as Parquet (default: OUT/tables)"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the first chart to FILE, .png or .svg")
    parser.add_argument("--no-spark", action="store_true", help="run in processes of this machine, without Spark")
    parser.add_argument(
        "--master", metavar="URL", help="Spark's master (default: local[*,4]): spark://HOST:PORT, sc://HOST ..."
    )
    parser.add_argument(
        "--jobs", metavar="N", type=_count, default=os.cpu_count() or 1, help="cores to use here (default: all)"
    )
    parser.add_argument("--small", action="store_true", help="service: only the smallest ring and few messages")
    processes.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name == PROCESSES:
        return processes.run(arguments)
    from tidings_lab.experiments import plot
    from tidings_lab.experiments.experiment import Choice

    if arguments.no_spark and arguments.master is not None:
        arguments.usage_error("--master is for Spark: leave out --no-spark")
    if arguments.plot is not None:
        if arguments.name == ALL:
            arguments.usage_error("--plot is for one experiment: use --out instead")
        plot.check_target(arguments.plot)
    if arguments.out is not None:
        plot.check_matplotlib()
    known = EXPERIMENTS | WITH_PROCESSES
    experiments = list(EXPERIMENTS.values()) if arguments.name == ALL else [known[arguments.name]]
    choice = Choice(
        nodes=tuple(arguments.nodes) if arguments.nodes else None,
        shares=tuple(arguments.share) if arguments.share else None,
        first_seed=arguments.seed,
        seeds=arguments.seeds,
        messages=tuple(arguments.messages) if arguments.messages else None,
        is_small=arguments.small,
    )
    broken = 0
    # What measures this machine has to have it to itself.
    is_here = arguments.name in WITH_PROCESSES
    with engine_for(None if is_here else _master(arguments), 1 if is_here else arguments.jobs) as engine:
        for experiment in experiments:
            broken += len(_run_one(experiment, choice, engine, arguments).broken)
    return 1 if broken else 0


def _master(arguments: argparse.Namespace) -> str | None:
    """Spark's, unless there is to be no Spark. InvalidRequest says what is missing, and how to do without it."""
    from tidings.spark import INSTALL
    from tidings.spark.session import ATTEMPTS, check_java

    if arguments.no_spark:
        return None
    master = arguments.master or f"local[{arguments.jobs},{ATTEMPTS}]"
    try:
        import pyspark as _  # noqa: F401

        if not master.startswith("sc://"):
            check_java()
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"{INSTALL} Or add --no-spark.") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{error} Or add --no-spark.") from error
    return master


def _run_one(experiment: Experiment, choice: Choice, engine: Engine, arguments: argparse.Namespace) -> Outcome:
    from tidings_lab.experiments import plot
    from tidings_lab.experiments.experiment import run_experiment
    from tidings_lab.experiments.report import drawn, plain_table, write_report

    lake = arguments.lake or (str(arguments.out / "tables") if arguments.out is not None else None)
    folder = lake_folder(lake, "experiments", experiment.name) if lake is not None else None
    with progress_bar(experiment.name, len(experiment.points(choice))) as tell:
        outcome = run_experiment(experiment, choice, engine, folder, tell)
    for sentence in outcome.broken:
        print(f"Broken: {sentence}", file=sys.stderr)
    for question in experiment.questions:
        rows = outcome.answers[question.name]
        for row in rows if arguments.json else ():
            print_json({"experiment": experiment.name, "table": question.name, **row})
        if not arguments.json and not question.is_for_figures:
            print(f"{question.title}\n")
            print("\n".join(plain_table(question, rows)) + "\n")
    if arguments.plot is not None:
        figures = drawn(experiment, outcome)
        if not figures:
            raise InvalidRequest("There is nothing to draw: all runs failed, as said above.")
        plot.draw(figures[0], outcome.answers[figures[0].question], [arguments.plot])
    if arguments.out is not None:
        page = write_report(experiment, outcome, arguments.out, _command(experiment, arguments), folder)
        if not arguments.json:
            print(f"The page is {page}\n")
    return outcome


def _command(experiment: Experiment, arguments: argparse.Namespace) -> str:
    """The command that makes the same figures again."""
    words = ["tidings", "experiment", experiment.name, "--seed", str(arguments.seed)]
    for name, values in (
        ("--nodes", arguments.nodes),
        ("--share", arguments.share),
        ("--messages", arguments.messages),
    ):
        for value in values or ():
            words += [name, str(value)]
    if arguments.seeds is not None:
        words += ["--seeds", str(arguments.seeds)]
    if arguments.small:
        words.append("--small")
    return shlex.join(words)


def _nodes(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 10 <= number <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 10 to 100000")
    return number


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 0.95:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 0.95")
    return share
