"""Folders of version 0.1.0 are carried over in place: everything in them is there, and stays there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.first_folders import KINDS, turn, unpack
from tests.integration.folder_kinds import ALONE, EMBEDDED, MEMBER, RING, STORAGE, House, check, unchanged, use_up
from tests.integration.folder_refusals import OPENERS, TABLE, is_open, refusals
from tidings.admin.ports import free_address
from tidings.journal.folder import read_folder, role_of

NOTES = {"folder", "inventory", "durable"}
ROLES = {ALONE: "broker", STORAGE: "broker", MEMBER: "member", RING: "ring"}


@pytest.fixture(autouse=True)
def _turn() -> Iterator[None]:
    with turn():
        yield


@pytest.mark.parametrize("name", KINDS)
def test_everything_is_there_and_the_folder_has_its_notes(tmp_path: Path, name: str) -> None:
    house = unpack(name, tmp_path)
    for folder in house.folders:
        assert not NOTES & {path.name for path in folder.iterdir()}
        assert role_of(folder) == ROLES[house.kind]
    with house:
        check(house.connect)
    for folder in house.folders:
        assert {path.name for path in folder.iterdir()} >= NOTES
        note = read_folder(folder)
        assert note is not None
        assert (note.role, note.begun) == (ROLES[house.kind], True)
        assert note.inode == (folder / "folder").stat().st_ino, "bound to this disk from now on"
    with house:
        check(house.connect)
        use_up(house.connect)


@pytest.mark.parametrize("name", ["alone", "killed", "storage"])
@pytest.mark.parametrize("kind", [ALONE, EMBEDDED, STORAGE])
def test_anyone_who_shares_the_role_may_carry_it_over(tmp_path: Path, name: str, kind: str) -> None:
    found = unpack(name, tmp_path)
    house = House(kind, found.folders, found.addresses)
    for _ in range(2):
        with house:
            check(house.connect)


@pytest.mark.parametrize("name", KINDS)
def test_anyone_who_comes_in_another_role_leaves_it_as_it_was(tmp_path: Path, name: str) -> None:
    """No note says what it is, but its files do."""
    house = unpack(name, tmp_path)
    others = {opener: words for opener, words in zip(OPENERS, TABLE[house.kind], strict=True) if not is_open(words)}
    with unchanged(house.folders):
        said = refusals(house, list(others))
    for opener, words in others.items():
        assert said[opener].sentence == f"{house.folder} {words} {house.folder}`, or name another folder.\n"


@pytest.mark.parametrize("name", ["group", "ring"])
def test_anyone_who_comes_under_another_address_leaves_it_as_it_was(tmp_path: Path, name: str) -> None:
    house, other = unpack(name, tmp_path), free_address()
    with unchanged(house.folders):
        said = refusals(house, [house.kind], bind=other)
    assert f"belongs to the member at {house.addresses[0]}, and this node is {other}" in said[house.kind].sentence
