"""The journal: the append-only files that hold everything a broker must not forget."""

from tidings.journal.disk import Buffer, Disk, DiskFull, RealDisk, SyncFailed
from tidings.journal.journal import Commit, Journal
from tidings.journal.record import COMMAND, LOCAL, REPLICA, Append, Record
from tidings.journal.recovery import Recovery
from tidings.journal.segment import Segment

__all__ = [
    "COMMAND",
    "LOCAL",
    "REPLICA",
    "Append",
    "Buffer",
    "Commit",
    "Disk",
    "DiskFull",
    "Journal",
    "RealDisk",
    "Record",
    "Recovery",
    "Segment",
    "SyncFailed",
]
