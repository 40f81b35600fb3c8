"""`tidings simulate`: the whole system in simulations, one for each seed."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter

import msgspec

from tidings.cli import lab
from tidings.cli.output import print_json
from tidings.cli.progress import progress_bar
from tidings.simulator.many import run_many, silenced
from tidings.simulator.planting import Mutant, mutants
from tidings.simulator.run import WORLDS as BROKER_WORLDS
from tidings.simulator.run import Result
from tidings.simulator.worlds import ALL, IN_THE_LAB, in_turn, offered, replay_command, run_seed, worlds

HELP = """\
Runs clients, broker and journal in virtual time, on a network that loses, delays and reorders and on a disk that
tears and forgets, and checks that nothing acknowledged is lost and nothing comes twice. A seed decides everything
that happens: the same seed is the same run. Exits with 1 if a run breaks an invariant, and says how to replay it.
Every run picks new seeds and prints them, unless you give --first-seed or --seed.
With --sweep every seed is run and the results become a table; with --master the seeds are tasks of a Spark cluster.
"""

EXAMPLES = """\
  tidings simulate --seeds 1000
  tidings simulate --seeds 1000 --first-seed 5000 --jobs 4
  tidings simulate --world all --seeds 100000 --all # all worlds in turn, despite failures
  tidings simulate --seed 42 --trace                # one run, line by line
  tidings simulate --seeds 500 --mutant skip-sync   # with a planted bug, which must be found
  tidings simulate --world groups --seeds 1000      # members that share the work of a topic
  tidings simulate --world stages --seeds 1000      # queries that write in stages, and readers of ranges
  tidings simulate --world cluster --seeds 1000     # clients of a group of replicas
  tidings simulate --world ring-cluster --seeds 500 # clients of a ring of such groups
  tidings simulate --world paxos --seeds 1000       # replicas that agree on one log (needs tidings-lab)
  tidings simulate --world ring-churn --seeds 1000  # a Chord ring whose members come and go (needs tidings-lab)
  tidings simulate --mutants                        # the planted bugs
  tidings simulate --sweep --seeds 100000 --master spark://10.0.0.1:7077 --lake lake/
"""

FAILURES_SHOWN_MAX = 10
FIRST_SEED_MAX = 10**12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    more = ", ".join(offered()) or "tampered, paxos, overlay-NAME, ring-churn, ring-multicast (need tidings-lab)"
    parser.add_argument(
        "--world",
        metavar="NAME",
        help=f"the kind of world (default: topics): {', '.join(BROKER_WORLDS)}, {more}; "
        f"{ALL}: {', '.join(in_turn())} in turn",
    )
    parser.add_argument("--seeds", metavar="N", type=_count, default=100, help="how many seeds to run (default: 100)")
    parser.add_argument(
        "--first-seed",
        metavar="K",
        type=int,
        help="the first of them (default: a new one in every run; 0 with --mutant)",
    )
    parser.add_argument("--seed", metavar="S", type=int, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="print what happens, line by line; with --seed")
    parser.add_argument("--mutant", metavar="NAME", help="plant a bug first, which must be found (needs tidings-lab)")
    parser.add_argument("--mutants", action="store_true", help="list the bugs that can be planted (needs tidings-lab)")
    parser.add_argument(
        "--jobs", metavar="N", type=_count, default=os.cpu_count() or 1, help="processes (default: one for each core)"
    )
    parser.add_argument("--all", action="store_true", help="continue after a failure")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each failure, and one at the end")
    sweep = parser.add_argument_group("sweeps (need tidings-lab)")
    sweep.add_argument("--sweep", action="store_true", help="run every seed, and make a table of the results")
    sweep.add_argument(
        "--master", metavar="URL", help="run the seeds as Spark tasks: local[2], spark://HOST:PORT, sc://HOST ..."
    )
    sweep.add_argument(
        "--tasks", metavar="N", type=_count, help="how many tasks to split them into (default: by the cores)"
    )
    sweep.add_argument(
        "--lake",
        "--out",
        metavar="DIR",
        help="write the table as Parquet to DIR/simulations; workers must reach it too",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.trace and arguments.seed is None:
        arguments.usage_error("--trace shows one run: name it with --seed")
    if arguments.sweep and arguments.seed is not None:
        arguments.usage_error("--sweep runs many seeds: leave out --seed or --sweep")
    if not arguments.sweep and any((arguments.master, arguments.tasks, arguments.lake)):
        arguments.usage_error("--master, --tasks and --lake are for sweeps: add --sweep")
    if arguments.world == ALL and (arguments.sweep or arguments.seed is not None):
        arguments.usage_error(f"--world {ALL} is for many seeds without --sweep: name one world")
    if arguments.tasks and not arguments.master:
        arguments.usage_error("--tasks are Spark's: add --master, or say --jobs")
    _choose_world(arguments)
    with silenced():
        return _simulate(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    if arguments.mutants:
        return _list_mutants(arguments.json)
    if arguments.seed is not None:
        return _run_one(arguments)
    _choose_first_seed(arguments)
    if arguments.sweep:
        return int(lab.load("sweep", "--sweep").run(arguments))
    return _run_all(arguments)


def _choose_world(arguments: argparse.Namespace) -> None:
    """A planted bug has its world; without one it is that of the topics."""
    wanted = arguments.world or "topics"
    if arguments.mutant is not None:
        bugs = _planted_bugs("--mutant")
        if arguments.mutant not in bugs:
            arguments.usage_error(f"there is no planted bug {arguments.mutant!r}: --mutants lists them")
        wanted = bugs[arguments.mutant].world
    if arguments.world not in (None, wanted):
        arguments.usage_error(f"{arguments.mutant} is a bug of the world {wanted!r}: leave out --world")
    if wanted not in (*worlds(), ALL):
        if wanted.startswith(IN_THE_LAB) and not offered():
            raise lab.missing(f"--world {wanted}")
        arguments.usage_error(f"there is no world {wanted!r}: choose from {', '.join((*worlds(), ALL))}")
    arguments.world = wanted


def _choose_first_seed(arguments: argparse.Namespace) -> None:
    """Another one in every run: seeds that have always held say nothing new. For planted bugs it does not matter."""
    if arguments.first_seed is not None:
        return
    if arguments.mutant is not None:
        arguments.first_seed = 0
        return
    arguments.first_seed = secrets.randbelow(FIRST_SEED_MAX)
    if not arguments.json:
        print(f"Seeds from {arguments.first_seed} on: --first-seed {arguments.first_seed} runs them again", flush=True)


def _run_one(arguments: argparse.Namespace) -> int:
    result = run_seed(arguments.seed, arguments.trace, arguments.mutant, arguments.world)
    if arguments.trace:
        for line in result.trace:
            print(line)
    if arguments.json:
        print_json(_fields(result))
    elif result.invariant is None:
        who = {"paxos": "replicas", "cluster": "nodes", "ring-cluster": "nodes"}.get(result.world, "broker")
        lives = f", {result.lives} lives of the {who}" if result.lives else ""
        trace = f", trace {result.trace_hash}" if result.trace_hash else ""
        print(
            f"Seed {result.seed} holds: {result.events} events in {result.virtual_ms / 1000:.1f} s of virtual time"
            f"{lives}{trace}"
        )
    else:
        tell_failure(result.seed, result.invariant, result.text, _replay(result, arguments.mutant))
    return 0 if result.invariant is None else 1


def _run_all(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    count, failed, events = 0, 0, 0
    worlds: Counter[str] = Counter()
    results = run_many(arguments.first_seed, arguments.seeds, arguments.jobs, arguments.mutant, arguments.world)
    with progress_bar("seeds", arguments.seeds) as tell:
        for result in results:
            count += 1
            worlds[result.world] += 1
            tell(count)
            events += result.events
            if result.invariant is not None:
                failed += 1
                if arguments.json:
                    print_json(_fields(result) | {"replay": _replay(result, arguments.mutant)})
                elif failed <= FAILURES_SHOWN_MAX:
                    tell_failure(result.seed, result.invariant, result.text, _replay(result, arguments.mutant))
                if not arguments.all:
                    break
    if arguments.world == ALL and not arguments.json:
        print(", ".join(f"{worlds[world]} of {world}" for world in in_turn()))
    return conclude(arguments, count, failed, events, time.monotonic() - began, worlds)


def conclude(
    arguments: argparse.Namespace, count: int, failed: int, events: int, seconds: float, worlds: dict[str, int]
) -> int:
    if arguments.json:
        print_json(
            {
                "first_seed": arguments.first_seed,
                "seeds": count,
                "worlds": dict(sorted(worlds.items())),
                "failed": failed,
                "events": events,
                "seconds": round(seconds, 3),
            }
        )
    else:
        outcome = "every invariant held" if not failed else f"{failed} broke an invariant"
        print(f"{count} seeds in {seconds:.1f} s, {count / seconds:.0f} seeds/s, {events} events: {outcome}")
    return 1 if failed else 0


def tell_failure(seed: object, invariant: object, text: object, replay: object) -> None:
    print(f"Seed {seed} breaks an invariant: {invariant}", file=sys.stderr)
    print(f"  {text}", file=sys.stderr)
    print(f"  replay: {replay}", file=sys.stderr)


def _replay(result: Result, mutant: str | None) -> str:
    return replay_command(result.seed, mutant, result.world)


def _fields(result: Result) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(result).items() if name != "trace"}


def _planted_bugs(option: str) -> dict[str, Mutant]:
    """All by their names. InvalidRequest says that the option needs the lab, where nobody offers any."""
    bugs = mutants()
    if not bugs:
        raise lab.missing(option)
    return bugs


def _list_mutants(as_json: bool) -> int:
    bugs = _planted_bugs("--mutants")
    width = max(map(len, bugs))
    for mutant in bugs.values():
        if as_json:
            print_json({"name": mutant.name, "what": mutant.what, "invariants": list(mutant.rules)})
        else:
            print(f"{mutant.name:{width}}  {mutant.what}")
    return 0


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
