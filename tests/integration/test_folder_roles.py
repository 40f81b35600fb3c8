"""A folder knows its role and its format: everything is there for anyone who opens it as what it is, and all others are
refused in one sentence that says what it is and how to open it, before a byte is written.

The folders are the same ones in all tests of this module, and not copied: a copy of a member's folder is refused.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

import tidings
from tests.integration.broker_process import ServerProcess
from tests.integration.first_release.make import fill
from tests.integration.folder_kinds import ALONE, KINDS, MEMBER, RING, House, check, command, unchanged
from tests.integration.folder_refusals import (
    AWAITED,
    GROWS,
    OPENERS,
    OPENS,
    TABLE,
    is_open,
    pairs,
    refusal,
    refusals,
)
from tidings.admin.ports import free_address, free_addresses
from tidings.journal.folder import FOLDER_NAME, FORMAT, read_folder
from tidings.journal.notes import encode_note

IN_USE = "is in use by another broker: stop it first, or connect to it."
NEWER = f"has format {FORMAT + 1}, and this release reads up to {FORMAT}: use a newer tidings"


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, House]:
    """A folder of each kind, with something in it and nobody who has it open."""
    place = tmp_path_factory.mktemp("folders")
    made = {kind: House.at(place, kind) for kind in KINDS}
    for house in made.values():
        with house:
            fill(house.connect)
    return made


@pytest.mark.parametrize(("owner", "opener"), [pair[:2] for pair in pairs() if pair[2] == OPENS])
def test_anyone_who_opens_a_folder_in_its_role_has_everything(
    houses: dict[str, House], owner: str, opener: str
) -> None:
    house = houses[owner]
    if opener == AWAITED:
        check(lambda client: asyncio.run(asyncio.to_thread(tidings.open, house.folder, client)))
        return
    with House(opener, house.folders, house.addresses) as opened:
        check(opened.connect)


@pytest.mark.parametrize(("owner", "opener"), [pair[:2] for pair in pairs() if pair[2] == GROWS and pair[0] != MEMBER])
def test_a_folder_that_grows_has_everything(houses: dict[str, House], owner: str, opener: str, tmp_path: Path) -> None:
    """Of a broker alone; `test_growth` has members, who need each other."""
    shutil.copytree(houses[owner].folder, tmp_path / "data")
    with House(opener, [tmp_path / "data"], houses[owner].addresses[:1]) as opened:
        check(opened.connect)


@pytest.mark.parametrize(("owner", "opener", "words"), [pair for pair in pairs() if not is_open(pair[2])])
def test_anyone_who_opens_a_folder_in_another_role_is_told_what_it_is(
    houses: dict[str, House], owner: str, opener: str, words: str
) -> None:
    house = houses[owner]
    with unchanged(house.folders):
        said = refusals(house, [opener], bind=house.addresses[0])[opener]
    assert said.sentence == f"{house.folder} {words} {house.folder}`, or name another folder.\n"
    assert said.kind in ("", "InvalidRequest")


@pytest.mark.parametrize("owner", KINDS)
def test_a_folder_is_opened_once_at_a_time(houses: dict[str, House], owner: str) -> None:
    """The one who has it stands still meanwhile, so that every byte that is written would be another's."""
    with houses[owner] as house, house.connect("holder"):
        house.freeze()
        try:
            with unchanged(house.folders):
                said = refusals(house, OPENERS)
        finally:
            house.thaw()
        for opener, words in zip(OPENERS, TABLE[owner], strict=True):
            kind, _, sentence = said[opener]
            if is_open(words):
                assert sentence == f"The folder {house.folder} {IN_USE}\n"
                assert kind in ("", "Unavailable")
            else:  # To stop anyone who has it would not help.
                assert words in sentence
                assert kind in ("", "InvalidRequest")
        check(house.connect)


@pytest.mark.parametrize("owner", KINDS)
def test_a_folder_of_a_newer_format_is_left_alone(houses: dict[str, House], owner: str) -> None:
    house = houses[owner]
    path = house.folder / FOLDER_NAME
    note, data = read_folder(house.folder), path.read_bytes()
    assert note is not None
    unknown = {"format": FORMAT + 1, "role": 7, "more": "than this release knows"}
    newer = msgspec.to_builtins(note, builtin_types=(bytes,)) | unknown
    write_in_place(path, encode_note(FOLDER_NAME, 0, msgspec.msgpack.encode(newer)))
    try:
        with unchanged(house.folders):
            said = refusals(house, OPENERS)
    finally:
        write_in_place(path, data)
    for kind, _, sentence in said.values():
        assert sentence == f"{house.folder} {NEWER}, or name another folder.\n"
        assert kind in ("", "InvalidRequest")
    with house:
        check(house.connect)


def write_in_place(path: Path, data: bytes) -> None:
    """The file stays the same one, as far as its folder can tell."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


@pytest.mark.parametrize("owner", [MEMBER, RING])
def test_a_folder_of_another_address_is_left_alone(houses: dict[str, House], owner: str) -> None:
    house, other = houses[owner], free_address()
    for bind in (other, house.addresses[1]):
        with unchanged(house.folders):
            said = refusals(house, [owner], bind)[owner]
        assert f"belongs to the member at {house.addresses[0]}, and this node is {bind}: bind that" in said.sentence


@pytest.mark.parametrize("owner", [MEMBER, RING])
def test_a_folder_of_another_group_is_left_alone(houses: dict[str, House], owner: str) -> None:
    house = houses[owner]
    others = [house.addresses[0], *free_addresses(2)]
    options = ("--group", ",".join(others)) if owner == RING else ()
    with unchanged(house.folders):
        said = refusal(owner, house, *options, group=others, bind=house.addresses[0])
    founders = house.addresses[:1] if owner == RING else house.addresses
    assert f"belongs to a group that was founded by {','.join(sorted(founders))}" in said.sentence
    assert f"and not to --group {','.join(others)}: omit --group, since a member knows its group" in said.sentence


def test_a_folder_that_was_killed_is_left_alone_too(tmp_path: Path) -> None:
    """What a killed process leaves behind, the room that it kept for one thing, is the owner's to remove."""
    house = House.at(tmp_path, ALONE)
    with ServerProcess(*command(ALONE, house.folder)) as server, tidings.connect(server.address, "alice") as bus:
        bus.put("news", "hello")
        server.kill()
    founders = free_addresses(3)
    with unchanged(house.folders):
        said = refusal(MEMBER, house, group=founders, bind=founders[0])
    assert "belongs to a broker alone, and the other founders would not have its messages" in said.sentence
    with tidings.open(house.folder) as bus:
        assert [message.text for batch in bus.read("news") for message in batch] == ["hello"]
