"""How much of the machine others used while something was measured.

Ratios survive a slow machine, but not one whose processors are taken: a bare loop that waits for the disk is
then woken late, and loses more than the broker that it is compared to, so that a target may seem to be met
because its limit has collapsed. What the whole machine spent is in /proc/stat, what this process and its
ended children spent the kernel says too; the rest was somebody else.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

import msgspec


class Spent(msgspec.Struct, frozen=True):
    """Seconds of all processors since the machine started: in programs, by the host, in all; and our own part."""

    programs: float
    stolen: float
    total: float
    own: float


def spent(stat: str | None = None) -> Spent | None:
    """What has been spent up to now; None where the system does not say.

    Children count once they have ended and been waited for.
    """
    if stat is None:
        try:
            stat = Path("/proc/stat").read_text()
        except OSError:
            return None
    ticks = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    user, nice, system, _, _, _, _, stolen = ticks
    tick_seconds = 1 / os.sysconf("SC_CLK_TCK")
    own = 0.0
    for whom in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(whom)
        own += usage.ru_utime + usage.ru_stime
    # Interrupts are left out: most of them are the network and the disk of what we measure.
    return Spent((user + nice + system) * tick_seconds, stolen * tick_seconds, sum(ticks) * tick_seconds, own)


def others_share(before: Spent | None, after: Spent | None, unseen: float = 0.0) -> float:
    """The share of the processors that others had between two moments, from 0 to 1.

    `unseen` is what processes of ours have spent that nobody has waited for.

    >>> others_share(Spent(0.0, 0.0, 0.0, 0.0), Spent(6.0, 1.0, 20.0, 3.0))
    0.2
    """
    if before is None or after is None or after.total <= before.total:
        return 0.0
    own = after.own - before.own + unseen
    taken = (after.programs - before.programs) + (after.stolen - before.stolen) - own
    return min(1.0, max(0.0, taken / (after.total - before.total)))


def _stat_of(pid: int) -> list[str]:
    """The fields behind a process's name: its state, its parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processor_seconds(pid: int) -> float:
    """How long a process has been busy since it started; 0 if it has ended.

    >>> processor_seconds(os.getpid()) > 0
    True
    """
    try:
        user, system = _stat_of(pid)[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that have not ended; none where the system does not say.

    >>> os.getpid() in children(os.getppid())
    True
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if int(_stat_of(int(entry.name))[1]) == pid:
                found.append(int(entry.name))
    return found
