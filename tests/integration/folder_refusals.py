"""Who may open which folder, as a table, and how everybody else is refused: by one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.integration.folder_kinds import ALONE, EMBEDDED, MEMBER, RING, STORAGE, House, command
from tests.integration.programs import run_program
from tidings.admin.ports import free_address

AWAITED = "awaited"
"""`tidings.open` beside an event loop: there is no embedded bus whose methods are awaited."""
OPENERS = (EMBEDDED, AWAITED, ALONE, MEMBER, RING, STORAGE)
A_MEMBER, A_NODE = (
    "belongs to a member of a replica group: start that with `tidings serve --data",
    "belongs to a node of a ring: start that with `tidings serve --data",
)
OPENS = ""
GROWS = "grows"
"""It opens, and the folder has another role from then on."""
TABLE = {
    #          embedded  awaited   alone     member    ring      storage
    ALONE:    (OPENS,    OPENS,    OPENS,    GROWS,    GROWS,    OPENS),
    EMBEDDED: (OPENS,    OPENS,    OPENS,    GROWS,    GROWS,    OPENS),
    STORAGE:  (OPENS,    OPENS,    OPENS,    GROWS,    GROWS,    OPENS),
    MEMBER:   (A_MEMBER, A_MEMBER, OPENS,    OPENS,    GROWS,    A_MEMBER),
    RING:     (A_NODE,   A_NODE,   OPENS,    A_NODE,   OPENS,    A_NODE),
}  # fmt: skip
"""By who made a folder and who opens it. `tidings serve --data` opens each in the role that it has."""
REFUSED = 1
OPEN = """
    import asyncio, contextlib, io, json, sys, tidings
    from tidings.cli import main

    for opener, words in json.loads(sys.argv[1]):
        said, kind = io.StringIO(), ""
        try:
            if opener == "embedded":
                tidings.open(*words)
            elif opener == "awaited":
                asyncio.run(asyncio.to_thread(tidings.open, *words))
            else:
                with contextlib.redirect_stderr(said):
                    code = main(words)
        except tidings.TidingsError as error:
            kind, code = type(error).__name__, 1
            said.write(f"{error}\\n")
        print(json.dumps((kind, code, said.getvalue())))
"""
"""A process that tries to open folders in several ways, one after the other."""


class Said(NamedTuple):
    """What somebody was told who is not let in."""

    kind: str
    """The error's class; of a command nobody sees it."""
    code: int
    sentence: str


def is_open(words: str) -> bool:
    return words in (OPENS, GROWS)


def pairs() -> Iterator[tuple[str, str, str]]:
    for owner, row in TABLE.items():
        for opener, words in zip(OPENERS, row, strict=True):
            yield owner, opener, words


def refusals(house: House, openers: Sequence[str], bind: str | None = None) -> dict[str, Said]:
    """How openers are refused at a folder, in a process of their own."""
    group = house.addresses if house.kind == MEMBER else house.addresses[:1]
    return dict(zip(openers, _try([_attempt(each, house, group, bind=bind) for each in openers]), strict=True))


def refusal(opener: str, house: House, *options: str, group: Sequence[str], bind: str) -> Said:
    """The same for one of them."""
    return _try([_attempt(opener, house, group, *options, bind=bind)])[0]


def _attempt(
    opener: str, house: House, group: Sequence[str], *options: str, bind: str | None = None
) -> tuple[str, Sequence[str]]:
    if opener in (EMBEDDED, AWAITED):
        return opener, (str(house.folder),)
    return opener, (*command(opener, house.folder, group), *options, "--bind", bind or free_address())


def _try(attempts: Sequence[tuple[str, Sequence[str]]]) -> list[Said]:
    ended = run_program(OPEN, json.dumps(attempts))
    assert (ended.returncode, ended.stderr) == (0, "")
    answers = [Said(*json.loads(line)) for line in ended.stdout.splitlines()]
    for kind, code, sentence in answers:
        assert code == REFUSED
        assert kind in ("", "InvalidRequest", "Unavailable")
        assert sentence.endswith(".\n")
        assert sentence.count("\n") == 1
        assert ". " not in sentence, "one sentence"
    return answers
