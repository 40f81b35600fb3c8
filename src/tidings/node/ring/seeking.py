"""Who owns a point, and does that group's leader still live? Questions that are asked again until they are answered.

A point whose owner is not known is looked for by Chord where this node is its group's virtual node, and asked of that
virtual node otherwise; what a group says that has given the point away leads on. That is not always enough: who leaves
gives what it owns to the next group, and if another one has come in between meanwhile, Chord leads to that one, which
knows nothing of it. So after a while all groups are asked, some at a time. Groups to which clients' requests go are
asked every `PULSE_MS` what they own and who leads them; when the leader is silent, all members are asked, and as soon
as one of them knows of another leader everybody who waits for the old one is sent there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.messages import AskWord, Find, GroupDescriptor, Word

ASK_AGAIN_MS = 150
WANTED_MS_MAX = 5_000
WANTED_MAX = 10_000
ASKERS_MAX = 256
ASK_ALL_AFTER = 4
"""After so many questions in vain, groups are asked that nothing speaks for; so many at a time:"""
ASK_ALL_COUNT = 3
PULSE_MS = 150
SILENCE_MS_MAX = 450
"""A leader that has been silent for so long is suspected, and its fellow members are asked."""
LOST_MS = 1_500
"""A group that has been silent for so long may have left, and been switched off: others are asked for what it owned."""
ASKED_ABOUT_MS = 3_000
ASKED_ABOUT_MAX = 4_096

Send = Callable[[str, AskWord | Find | Word], None]


class _Wanted:
    __slots__ = ("asked_ms", "askers", "is_ours", "since_ms", "tries")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.asked_ms = now_ms - ASK_AGAIN_MS
        self.askers: dict[str, None] = {}
        self.is_ours = False
        """Whether this node wants it, and not only others."""
        self.tries = 0


class _Pulse:
    __slots__ = ("asked_ms", "heard_ms")

    def __init__(self, now_ms: int) -> None:
        self.heard_ms = now_ms
        self.asked_ms = 0


class Seeking:
    """What one node wants to know of others."""

    def __init__(
        self, directory: Directory, send: Send, find: Callable[[int, Key], bool], nearest: Callable[[], Iterable[str]]
    ) -> None:
        self._directory = directory
        self._send = send
        self._find = find
        """Has Chord look for the owner of a point; False if this node is no virtual node."""
        self._nearest = nearest
        """Nodes that may know more than we do."""
        self._wanted: dict[Key, _Wanted] = {}
        self._pulses: dict[bytes, _Pulse] = {}
        self._suspected: dict[bytes, None] = {}
        self._asked_about: dict[bytes, int] = {}
        """Groups of which others were told, and when: what is told has to be true."""

    def want(self, now_ms: int, point: Key, asker: str = "") -> None:
        """The owner of a point is wanted, by us or by another node."""
        wanted = self._wanted.get(point)
        if wanted is None:
            if len(self._wanted) >= WANTED_MAX:
                return
            wanted = self._wanted[point] = _Wanted(now_ms)
        wanted.since_ms = now_ms
        if not asker:
            wanted.is_ours = True
        elif len(wanted.askers) < ASKERS_MAX:
            wanted.askers[asker] = None
        if now_ms - wanted.asked_ms >= ASK_AGAIN_MS:
            self._ask(now_ms, point, wanted)

    def suspect(self, group: bytes) -> None:
        """What is known of a group seems to be wrong: all its members are asked, at the next tick."""
        self._suspected[group] = None

    def _ask(self, now_ms: int, point: Key, wanted: _Wanted) -> None:
        wanted.asked_ms = now_ms
        wanted.tries += 1
        owner = self._directory.find(point)
        hint = owner or self._directory.hint(point)
        if hint is not None:  # It does not know its leader, or it has given the point away: that is worth a question.
            self.ask_group(hint, everybody=not hint.leader)
        if owner is None and not self._find(now_ms, point):
            for address in self._nearest():
                self._send(address, Find(point))
        # Only for ourselves: nodes that asked each other for what each of them was asked for would never stop.
        if owner is None and wanted.is_ours and wanted.tries > ASK_ALL_AFTER:
            self._ask_some(point, wanted.tries - ASK_ALL_AFTER - 1)

    def _ask_some(self, point: Key, turn: int) -> None:
        """Asks some groups what they own, others at each turn; those that stand behind the point come first."""
        descriptors = list(self._directory.following(point))
        for place in range(turn * ASK_ALL_COUNT, (turn + 1) * ASK_ALL_COUNT) if descriptors else ():
            self.ask_group(descriptors[place % len(descriptors)])

    def ask_group(self, descriptor: GroupDescriptor, everybody: bool = False) -> None:
        """Asks a group what it owns and who leads it."""
        for address in descriptor.members if everybody or not descriptor.leader else (descriptor.leader,):
            self._send(address, AskWord(descriptor.group))

    # What comes in.

    def on_word(self, now_ms: int, sender: str, word: Word) -> None:
        """A word has come, and has been learned."""
        pulse = self._pulses.get(word.descriptor.group)
        if pulse is not None and sender == word.descriptor.leader:
            pulse.heard_ms = now_ms
        for point, wanted in list(self._wanted.items()):
            owner = self._directory.find(point)
            if owner is not None and owner.leader:
                del self._wanted[point]
                for asker in wanted.askers:
                    self._send(asker, self._directory.word_of(owner))

    def on_find(self, now_ms: int, sender: str, point: Key) -> None:
        """Another node wants the owner of a point."""
        owner = self._directory.find(point)
        if owner is not None and owner.leader:
            self._send(sender, self._directory.word_of(owner))
            if len(self._asked_about) < ASKED_ABOUT_MAX:
                self._asked_about[owner.group] = now_ms
        else:
            self.want(now_ms, point, sender)

    def tick(self, now_ms: int, in_use: Iterable[bytes], own: bytes = b"") -> None:
        """Asks again what has not been answered, and how those are who are in use."""
        for point, wanted in list(self._wanted.items()):
            if now_ms - wanted.since_ms > WANTED_MS_MAX:
                del self._wanted[point]
            elif now_ms - wanted.asked_ms >= ASK_AGAIN_MS:
                self._ask(now_ms, point, wanted)
        suspected, self._suspected = self._suspected, {}
        before, self._pulses = self._pulses, {}
        self._asked_about = {
            group: at_ms for group, at_ms in self._asked_about.items() if now_ms - at_ms < ASKED_ABOUT_MS
        }
        for group in dict.fromkeys((*in_use, *self._asked_about)):
            if group == own:
                continue
            pulse = self._pulses[group] = before.get(group) or _Pulse(now_ms)
            if now_ms - pulse.asked_ms >= PULSE_MS:
                pulse.asked_ms = now_ms
                descriptor = self._directory.descriptor(group)
                if descriptor is not None:
                    self.ask_group(descriptor, everybody=now_ms - pulse.heard_ms > SILENCE_MS_MAX)
            if now_ms - pulse.heard_ms > LOST_MS:
                pulse.heard_ms = now_ms
                self._directory.distrust(group)
        for group in suspected:
            descriptor = self._directory.descriptor(group)
            if descriptor is not None:
                self.ask_group(descriptor, everybody=True)
