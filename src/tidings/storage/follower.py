"""The thread that follows the journal: it keeps the texts and answers what was the last message.

It reads the journal from its files, behind the commits and never in their way, so it needs no memory for what it
has not got to. Records are taken in at once, because questions are answered from them. Writing texts is the larger
work: while a broker is writing, the follower does that for a share of the time only, falls behind, and catches up
afterwards.

An error of the disk (no room, no permission) is said once and tried again; it holds up nobody but the texts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tidings.errors import NoSuchTopic, StorageError, TidingsError
from tidings.journal import segment as files
from tidings.journal.checked import DamagedPlace
from tidings.journal.disk import ReadFolder
from tidings.journal.scrub import Scrub
from tidings.protocols.storage import (
    REFUSED,
    AnyStorageAnswer,
    AskStorage,
    Call,
    Failed,
    Last,
    LastMessage,
    StorageStatus,
)
from tidings.settings import BrokerSettings
from tidings.storage.history import History
from tidings.storage.lines import lines_of
from tidings.storage.texts import Texts
from tidings.transport.router import Peer

WRITE_BYTES = 512 * 1024
"""Lines written by one call."""
TURN_SECONDS = 0.05
"""For so long texts are written before the follower looks what else there is."""
NAP_SECONDS = 0.02
"""How often the follower looks at the journal while a broker is writing."""
BUSY_SHARE = 0.15
"""The share of the time for texts while a broker is writing."""
LOOK_SECONDS = 1.0
"""How often the folder is looked after, and texts are tried again after an error."""
STOP_SECONDS_MAX = 5.0
"""For so long texts are brought up to date at the end; the next start does the rest."""
CHECKPOINT_SECONDS_MAX = 30.0
"""At the latest so often the texts' positions go to disk; earlier as soon as there is nothing else to do."""

SCRUB_HOURS = 24.0
"""Within this time all of the journal is read once, a small one sooner."""
DAMAGED_MAX = 1_000

_log = logging.getLogger("tidings.storage")

Reply = tuple[Peer, AnyStorageAnswer, list[bytes]]


class Follower:
    """Started with the server, stopped before it ends. Its public methods belong to the server's thread."""

    def __init__(self, data: Path, settings: BrokerSettings, wake: Callable[[], None]) -> None:
        self._folder = ReadFolder(data)
        self._texts = Texts(data)
        self._history = History(self._folder, settings)
        self._wake_server = wake
        self._told: dict[str, int] = {}
        """Files of which so much is final, as the server has said; not taken note of yet."""
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken = threading.Event()
        self._stopping = False
        self._behind: dict[str, None] = {}
        """Topics whose texts lack something."""
        self._unsaved = False
        self._saved_at = time.monotonic()
        self._looked_at = 0.0
        self._busy_until = 0.0
        self._pause_until = 0.0
        self._failed: TidingsError | None = None
        self._complaint = ""
        self._scrub = Scrub(self._history, SCRUB_HOURS)
        self._damaged: dict[tuple[str, int], None] = {}
        self._stopped: dict[str, None] = {}
        """Topics whose texts have come to something that is damaged."""
        self._needed_slot = 0
        self.replies: deque[Reply] = deque()
        """Answers to `ask`, for the server to send."""
        self._inbox.append(self._recover)
        self._thread = threading.Thread(target=self._run, name="tidings-texts", daemon=True)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    # In the server's thread.

    def on_final(self, name: str, size: int) -> None:
        """So many bytes of a file are final. While they come one after the other, the follower looks by itself."""
        self._told[name] = size
        if time.monotonic() > self._busy_until:
            self._woken.set()

    def on_cut(self, name: str, size: int) -> None:
        """A broker that recovers has cut a file; it will say how much of the file is final then."""
        self._told.pop(name, None)
        self._tell(lambda: self._on_cut(name, size))

    def on_open(self, settings: BrokerSettings) -> None:
        """Another broker has come, perhaps with other settings: what it will recover is recovered here too."""
        self._tell(lambda: self._on_open(settings))

    def ask(self, peer: Peer, call: Last | AskStorage, epoch: int, size_bytes: int) -> None:
        """Has a question answered when everything that was final by now has been taken in."""
        self._tell(lambda: self._answer(peer, call, epoch, size_bytes))

    def keeps(self, name: str) -> bool:
        """Whether texts still need a file of the journal, also after a crash."""
        return any(
            slot >= self._needed_slot
            for suffix in (files.JOURNAL_SUFFIX, files.INDEX_SUFFIX)
            for slot in files.slots_of([name], suffix)
        )

    def stop(self) -> None:
        """Writes what can be written in a few seconds, saves how far that was, and ends."""
        self._stopping = True
        self._woken.set()
        self._thread.join()
        self._folder.close()
        self._texts.close()

    def _tell(self, what: Callable[[], None]) -> None:
        self._inbox.append(what)
        self._woken.set()

    # In the follower's own thread.

    def _run(self) -> None:
        while not self._stopping:
            self._woken.clear()
            try:
                self._turn()
            except (OSError, StorageError) as error:
                self._complain(error)
                if isinstance(error, StorageError):  # What was read did not fit together: look at all of it again.
                    self._inbox.append(self._recover)
                self._woken.wait(LOOK_SECONDS)
            else:
                self._complaint = ""
                self._rest()
        try:
            self._finish()
        except (OSError, StorageError) as error:
            self._complain(error)

    def _turn(self) -> None:
        self._take_inbox()
        if self._failed is not None:
            return
        self._advance()
        began = time.monotonic()
        if began - self._looked_at >= LOOK_SECONDS:
            self._looked_at = began
            self._look_after()
            self._look_for_damage(began)
        if began >= self._pause_until:
            self._write_some(began + TURN_SECONDS)
        now = time.monotonic()
        busy = now < self._busy_until
        if busy and began >= self._pause_until:
            self._pause_until = now + (now - began) * (1 / BUSY_SHARE - 1)
        if self._unsaved and (now - self._saved_at > CHECKPOINT_SECONDS_MAX or not (self._behind or busy)):
            self._checkpoint()

    def _take_inbox(self) -> None:
        while self._inbox:
            try:
                self._inbox[0]()
            except StorageError:
                self._inbox.popleft()
                raise
            self._inbox.popleft()  # After an OSError it is still the first, and is tried again.

    def _rest(self) -> None:
        """Until there is something to do; while a broker is writing, for a moment at least."""
        while not (self._inbox or self._stopping):
            now = time.monotonic()
            if now < self._busy_until:
                # To be woken by every commit would cost the commits more than it would gain the texts.
                self._woken.wait(NAP_SECONDS)
                return
            waiting = self._behind and self._failed is None
            left = self._pause_until - now if waiting else LOOK_SECONDS
            if self._told or left <= 0 or not self._woken.wait(left):
                return
            self._woken.clear()

    def _finish(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS_MAX
        self._take_inbox()
        if self._failed is None:
            self._advance()
            self._write_some(deadline)
            self._checkpoint()

    def _write_some(self, deadline: float) -> None:
        while self._behind and time.monotonic() < deadline:
            self._write(next(iter(self._behind)), deadline)

    def _complain(self, error: Exception) -> None:
        sentence = f"The texts of the topics could not be written ({error}): they follow when they can."
        if sentence != self._complaint:
            self._complaint = sentence
            _log.warning("%s", sentence)

    def _recover(self) -> None:
        try:
            self._history.recover(self._texts.address)
            self._history.advance({}, lambda topics: None)
        except StorageError as error:
            self._failed = error  # The broker meets the same damage and says so; until then nothing is known here.
            raise
        self._failed = None
        topics = self._history.machine.topics
        rewritten = self._texts.survey({name: topic.next_offset for name, topic in topics.items()})
        self._behind = dict.fromkeys(topics)
        if rewritten:
            self._checkpoint()
        self._needed_slot = self._needed()

    def _on_cut(self, name: str, size: int) -> None:
        if self._history.is_beyond(name, size):
            self._recover()

    def _on_open(self, settings: BrokerSettings) -> None:
        self._advance()
        self._texts.address = self._history.address
        self._history = History(self._folder, settings)
        self._scrub = Scrub(self._history, SCRUB_HOURS)
        self._recover()

    def _advance(self) -> None:
        if self._told:
            self._busy_until = time.monotonic() + LOOK_SECONDS
        while self._told:
            self._history.note_final(*self._told.popitem())
        before = self._history.address
        self._history.advance(self._behind, self._write_all)
        self._unsaved = self._unsaved or self._history.address != before

    def _write_all(self, topics: Iterable[str]) -> None:
        """The index is about to lose what these topics had: their texts must have it before."""
        for topic in topics:
            while topic in self._behind:
                self._write(topic, math.inf)

    def _write(self, name: str, deadline: float) -> None:
        """Brings one text up to date, or as far as it gets."""
        topic = self._history.machine.topics.get(name)
        text = self._texts.text(name)
        if topic is None or text.next_offset >= topic.next_offset or not topic.offsets:
            self._behind.pop(name, None)
            return
        self._unsaved = True
        text.next_offset = max(text.next_offset, topic.first_offset)  # Retention was faster, or it is written again.
        lines: list[bytes] = []
        size = count = 0
        for values in self._readable(name, self._history.values(topic, text.next_offset)):
            lines.append(lines_of(values))
            size += len(lines[-1])
            count += len(values)
            if size >= WRITE_BYTES:
                if not self._texts.append(text, b"".join(lines), count):
                    self._start_over()
                    return
                lines, size, count = [], 0, 0
                if time.monotonic() >= deadline:
                    return
        if count and not self._texts.append(text, b"".join(lines), count):
            self._start_over()

    def _readable(self, name: str, batches: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """Batches up to one that is damaged: a text stops in front of it, and the others go on."""
        try:
            yield from batches
        except DamagedPlace as damage:
            self._behind.pop(name, None)
            if name not in self._stopped:
                self._stopped[name] = None
                _log.warning("The text of %r stops before data that cannot be read: %s", name, damage)

    def _start_over(self) -> None:
        """A text was not as it was left; before it is written again, it must be known that it is."""
        self._behind.update(dict.fromkeys(self._texts.look_after()))
        self._checkpoint()

    def _look_after(self) -> None:
        gone = self._texts.look_after()
        if gone:
            self._behind.update(dict.fromkeys(gone))
            self._checkpoint()

    def _look_for_damage(self, now: float) -> None:
        """Reads a little of the journal, to see whether the disk still has it; each damaged place is said once."""
        for damage in self._scrub.tick(round(now * 1000)):
            place = (damage.name, damage.position)
            if place not in self._damaged and len(self._damaged) < DAMAGED_MAX:
                self._damaged[place] = None
                _log.warning("%s", damage)

    def _checkpoint(self) -> None:
        self._texts.checkpoint(self._history.address)
        self._unsaved = False
        self._saved_at = time.monotonic()
        self._needed_slot = self._needed()
        self._wake_server()

    def _needed(self) -> int:
        """The oldest segment that a text would have to be read from after a crash."""
        machine = self._history.machine
        lowest = self._history.address
        for name in self._behind:
            topic = machine.topics.get(name)
            saved = self._texts.saved_offset(name)
            if topic is not None and topic.offsets and saved < topic.next_offset:
                entry = topic.find(max(saved, topic.first_offset))
                lowest = min(lowest, *topic.addresses[entry:])
        return self._history.slot_at(lowest)

    # Questions.

    def _answer(self, peer: Peer, call: Call, epoch: int, size_bytes: int) -> None:
        answer: AnyStorageAnswer
        buffers: list[bytes] = []
        try:
            if self._failed is not None:
                raise self._failed
            self._advance()
            if isinstance(call, Last):
                answer, buffers = self._last(call)
            else:
                answer = self._status(call, epoch, size_bytes)
        except TidingsError as error:
            answer = Failed(call.call, REFUSED, str(error), error.number)
        self.replies.append((peer, answer, buffers))
        self._wake_server()

    def _last(self, call: Last) -> tuple[AnyStorageAnswer, list[bytes]]:
        found = self._history.last(call.topic)
        if found is None:
            raise NoSuchTopic(f"The topic {call.topic!r} has no message yet.")
        offset, columns, row = found
        times = columns.published_us
        published_us = times if isinstance(times, int) else times[row]
        return LastMessage(call.call, call.topic, offset, columns.publisher, published_us), [columns.values[row]]

    def _status(self, call: Call, epoch: int, size_bytes: int) -> StorageStatus:
        machine = self._history.machine
        behind = 0
        for name in self._behind:
            topic = machine.topics.get(name)
            if topic is not None and topic.offsets:
                next_offset = self._texts.text(name).next_offset
                if next_offset < topic.next_offset:
                    behind += sum(topic.sizes[topic.find(max(next_offset, topic.first_offset)) :])
        return StorageStatus(call.call, epoch, size_bytes, len(machine.topics), behind)
