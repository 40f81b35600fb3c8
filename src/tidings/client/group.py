"""A member of a group in the caller's hands: messages one by one, in shares, or each acked by itself."""

from __future__ import annotations

from collections.abc import Iterator

from tidings.client import working
from tidings.client.member import Member
from tidings.client.operations import Core
from tidings.client.shells import AwaitingShell, BlockingShell
from tidings.client.subscription import AsyncBatches, AsyncMessages
from tidings.client.working import Worker
from tidings.message import Message, Share


class GroupSubscription:
    """What `Bus.subscribe(topic, group=...)` returns: this client as one of the members that share a topic.

    A loop over it acks each message when the next one is asked for. A message that is in flight when the loop ends
    early, by `break` or an error, is not acked: it goes back to the group as by `nack`, and comes again as its next
    attempt. What a member has in flight goes to others when the member is silent for longer than the broker's lease, or
    does not ack what it was sent again and again. What it acks after that does not count: a
    loop goes on without a word, and `refused` counts such messages; `ack` raises Fenced.

    for job in bus.subscribe("jobs", group="workers"): ...

    jobs = bus.subscribe("jobs", group="workers")
    if (job := jobs.get(timeout=5.0)) is not None:
        jobs.ack(job)                 # or jobs.nack(job, delay=30.0), or jobs.extend(job) and go on
    """

    def __init__(self, bus: BlockingShell, core: Core, member: Member) -> None:
        self.topic = member.topic
        self.group = member.group
        self._bus = bus
        self._core = core
        self._member = member

    @property
    def refused(self) -> int:
        """How many messages, at most, were dealt with here in vain, because they had gone to another member."""
        return self._member.refused

    @property
    def topics(self) -> tuple[str, ...]:
        """The one topic, as other subscriptions name theirs."""
        return (self.topic,)

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def messages(self, timeout: float | None = None) -> Iterator[Message]:
        """The messages as they come; ends when none came for `timeout` seconds, or at `close`."""
        perform, worker = self._bus.perform, Worker(self._core, self._member, timeout)
        core, member, done = self._core, self._member, 0
        try:
            while (piece := perform(worker.step_unwatched())) is not None:
                changes = worker.changes
                for message in piece:
                    if member.changes != changes or core.inherited:
                        break
                    yield message
                    done += 1
                worker.done, done = done, 0
        except GeneratorExit:  # The body has left the loop, with the last message in flight.
            worker.taken = done + 1
            raise
        finally:
            worker.done += done
            self._bus.apply_change(worker.leave)

    def batches(self, timeout: float | None = None) -> Iterator[Share]:
        """The same in batches, each acked as one when the next is asked for; `offsets` is one of their columns."""
        perform, worker = self._bus.perform, Worker(self._core, self._member, timeout)
        try:
            while (share := perform(worker.step_batch())) is not None:
                yield share
                worker.done = len(share.values)
        finally:
            self._bus.apply_change(worker.leave)

    def get(self, timeout: float | None = 0.0) -> Message | None:
        """The next message, to be acked by `ack`, or given back by `nack`; None when there is none in time."""
        return self._bus.perform(working.get(self._core, self._member, self._core.deadline_ms(timeout)))

    def ack(self, message: Message) -> None:
        """Acks a message: when this returns, nobody gets it again.

        Fenced says that it had gone to another member, and that what was made of it must be dropped. After
        Unavailable it may be acked or not: say it again.
        """
        self._bus.perform(working.ack(self._core, self._member, message))

    def nack(self, message: Message, delay: float = 0.0) -> None:
        """Gives a message back: it comes again, here or elsewhere, not before `delay` seconds have passed.

        So that the order holds, what this member has of the same lane behind it is given back as well.
        """
        self._bus.perform(working.nack(self._core, self._member, message, delay))

    def extend(self, message: Message) -> None:
        """This message takes longer: it is not sent again for another while."""
        self._bus.perform(working.extend(self._core, self._member, message))

    def unsubscribe(self) -> None:
        """Leaves the group: what is not acked goes on with the others."""
        self._bus.perform(working.leave(self._core, self.group, self.topic))

    def close(self, leave: bool = False) -> None:
        """Acks what was dealt with and gives back the rest; the client stays a member unless `leave`."""
        if leave:
            self.unsubscribe()
        elif not self._bus.lost:
            self._bus.perform(working.close(self._core, self._member))

    def __enter__(self) -> GroupSubscription:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GroupSubscription({self.topic!r}, group={self.group!r})"


class AsyncGroupSubscription:
    """What `AsyncBus.subscribe(topic, group=...)` returns: the same as `GroupSubscription`, awaited."""

    def __init__(self, bus: AwaitingShell, core: Core, member: Member) -> None:
        self.topic = member.topic
        self.group = member.group
        self._bus = bus
        self._core = core
        self._member = member

    @property
    def refused(self) -> int:
        """How many messages, at most, were dealt with here in vain, because they had gone to another member."""
        return self._member.refused

    @property
    def topics(self) -> tuple[str, ...]:
        """The one topic, as other subscriptions name theirs."""
        return (self.topic,)

    def __aiter__(self) -> AsyncMessages:
        return self.messages()

    def messages(self, timeout: float | None = None) -> AsyncMessages:
        """The messages as they come; ends when none came for `timeout` seconds, or at `close`."""
        return AsyncMessages(self._bus, Worker(self._core, self._member, timeout))

    def batches(self, timeout: float | None = None) -> AsyncBatches:
        """The same in batches, each acked as one when the next is asked for."""
        return AsyncBatches(self._bus, Worker(self._core, self._member, timeout))

    async def get(self, timeout: float | None = 0.0) -> Message | None:
        """The next message, to be acked by `ack`, or given back by `nack`; None when there is none in time."""
        return await self._bus.perform(working.get(self._core, self._member, self._core.deadline_ms(timeout)))

    async def ack(self, message: Message) -> None:
        """Acks a message; Fenced when it had gone to another member."""
        await self._bus.perform(working.ack(self._core, self._member, message))

    async def nack(self, message: Message, delay: float = 0.0) -> None:
        """Gives a message back: it comes again, here or elsewhere, not before `delay` seconds have passed."""
        await self._bus.perform(working.nack(self._core, self._member, message, delay))

    async def extend(self, message: Message) -> None:
        """This message takes longer: it is not sent again for another while."""
        await self._bus.perform(working.extend(self._core, self._member, message))

    async def unsubscribe(self) -> None:
        """Leaves the group: what is not acked goes on with the others."""
        await self._bus.perform(working.leave(self._core, self.group, self.topic))

    async def close(self, leave: bool = False) -> None:
        """Acks what was dealt with and gives back the rest; the client stays a member unless `leave`."""
        if leave:
            await self.unsubscribe()
        elif not self._bus.lost:
            await self._bus.perform(working.close(self._core, self._member))

    async def __aenter__(self) -> AsyncGroupSubscription:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncGroupSubscription({self.topic!r}, group={self.group!r})"
