"""The folders of version 0.1.0 that are kept here, unpacked."""

from __future__ import annotations

import contextlib
import fcntl
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.integration.first_release.make import MEMBERS, NODES
from tests.integration.folder_kinds import ALONE, MEMBER, RING, STORAGE, House
from tidings.admin.ports import free_addresses

ARCHIVES = Path(__file__).with_name("first_release")
KINDS = {"alone": ALONE, "killed": ALONE, "storage": STORAGE, "group": MEMBER, "ring": RING}
"""What each archive holds."""
_ADDRESSES = {MEMBER: MEMBERS, RING: NODES}


def unpack(name: str, place: Path) -> House:
    """The folders of an archive, to be opened as what they are."""
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    kind = KINDS[name]
    folders = sorted(place.iterdir())
    return House(kind, folders, _ADDRESSES.get(kind) or free_addresses(len(folders)))


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """One test at a time: the members of these groups know each other by addresses that are the same in every run."""
    with open(Path(tempfile.gettempdir()) / "tidings-first-release.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
