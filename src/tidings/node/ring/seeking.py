"""Who owns a point, and does that group's leader still live? Questions that are asked again until they are answered.

A point whose owner is not known is looked for by Chord where this node is its group's virtual node, and asked of that
virtual node otherwise; what a group says that has given the point away leads on. That is not always enough: who leaves
gives what it owns to the next group, and if another one has come in between meanwhile, Chord leads to that one, which
knows nothing of it. So after a while all groups are asked, some at a time.

Whatever comes from a leader shows that it lives. One that owes an answer is asked every `PULSE_MS` what its group owns
and who leads it, and one that owes none every `IDLE_PULSE_MS`; when it stays silent, all members are asked, and as soon
as one of them knows of another leader everybody who waits for the old one is sent there. A new leader says by itself
that it leads, so nobody has to watch for that.
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
IDLE_PULSE_MS = 3_000
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


def _watched(descriptor: GroupDescriptor) -> str:
    """By what a group is watched: its leader's address, or its own name while nobody is known to lead it."""
    return descriptor.leader or descriptor.group.hex()


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
        self._asked_ms: dict[bytes, int] = {}
        """When each group that is in use was asked last."""
        self._heard_ms: dict[str, int] = {}
        """When each leader of such a group was last heard."""
        self._owes_since_ms: dict[str, int] = {}
        """Nodes that were told something and have said nothing since."""
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

    def on_sent(self, now_ms: int, address: str) -> None:
        """A node is told something that it should answer."""
        if address in self._heard_ms or len(self._owes_since_ms) < WANTED_MAX:
            self._owes_since_ms.setdefault(address, now_ms)

    def on_heard(self, now_ms: int, address: str) -> None:
        """A node has said something, whatever it is."""
        self._owes_since_ms.pop(address, None)
        if address in self._heard_ms:
            self._heard_ms[address] = now_ms

    def ask_group(self, descriptor: GroupDescriptor, everybody: bool = False) -> None:
        """Asks a group what it owns and who leads it."""
        for address in descriptor.members if everybody or not descriptor.leader else (descriptor.leader,):
            self._send(address, AskWord(descriptor.group))

    # What comes in.

    def on_word(self) -> None:
        """A word has come, and has been learned."""
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

    def tick(self, now_ms: int, in_use: Iterable[bytes], partners: Iterable[bytes] = (), own: bytes = b"") -> None:
        """Asks again what has not been answered, and how those are who are in use. What `partners` own changes, and one
        that has left and is switched off never says so: they are asked all the time.
        """
        for point, wanted in list(self._wanted.items()):
            if now_ms - wanted.since_ms > WANTED_MS_MAX:
                del self._wanted[point]
            elif now_ms - wanted.asked_ms >= ASK_AGAIN_MS:
                self._ask(now_ms, point, wanted)
        suspected, self._suspected = self._suspected, {}
        self._asked_about = {
            group: at_ms for group, at_ms in self._asked_about.items() if now_ms - at_ms < ASKED_ABOUT_MS
        }
        closely = dict.fromkeys((*partners, *self._asked_about))
        asked_before, heard_before = self._asked_ms, self._heard_ms
        self._asked_ms, self._heard_ms = {}, {}
        for group in dict.fromkeys((*closely, *in_use)):
            descriptor = self._directory.descriptor(group)
            if descriptor is not None and group != own:
                self._asked_ms[group] = asked_before.get(group, 0)
                watched = _watched(descriptor)
                self._heard_ms[watched] = heard_before.get(watched, now_ms)
                self._watch(now_ms, descriptor, group in closely)
        self._owes_since_ms = {each: at_ms for each, at_ms in self._owes_since_ms.items() if each in self._heard_ms}
        for group in suspected:
            descriptor = self._directory.descriptor(group)
            if descriptor is not None:
                self.ask_group(descriptor, everybody=True)

    def _watch(self, now_ms: int, descriptor: GroupDescriptor, closely: bool) -> None:
        """Asks a leader whether it lives, if it is time to, and the others when it says nothing."""
        watched, group = _watched(descriptor), descriptor.group
        owes_since_ms = self._owes_since_ms.get(watched, now_ms)
        if closely or not descriptor.leader:
            due_ms = self._asked_ms[group] + PULSE_MS
        elif watched in self._owes_since_ms:
            due_ms = max(self._asked_ms[group], owes_since_ms) + PULSE_MS
        else:
            due_ms = self._heard_ms[watched] + IDLE_PULSE_MS
        if now_ms >= due_ms:
            self._asked_ms[group] = now_ms
            self._owes_since_ms.setdefault(watched, now_ms)
            self.ask_group(descriptor, everybody=now_ms - owes_since_ms > SILENCE_MS_MAX)
        if now_ms - owes_since_ms > LOST_MS:
            self._owes_since_ms[watched] = now_ms
            self._directory.distrust(group)
