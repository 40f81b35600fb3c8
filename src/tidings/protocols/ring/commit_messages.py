"""What the leaders of groups say to each other about a commit over several of them. All of it can be lost or repeated.

The coordinator asks the owners for their parts until they answer, and tells them its decision until they have carried
it out. An owner that has heard nothing for a while asks.
"""

from __future__ import annotations

from tidings.protocols.broker.bulk import Extent
from tidings.protocols.broker.messages import Acknowledgement
from tidings.protocols.fields import Name, Number, Several, Token
from tidings.protocols.ring.commit_commands import CommitId, PartWrite, Publishing, StagedPart, StoredParts
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.stack import Message


class PreparePart(Message, frozen=True):
    """Write down your part of a commit; its bodies follow. You have to be able to carry it out from then on."""

    sender: GroupDescriptor
    group: Token
    commit: CommitId
    client: Name
    epoch: Number
    batches: Several[PartWrite]
    acknowledgements: Several[Acknowledgement]
    publishing: Publishing | None = None


class PartPrepared(Message, frozen=True):
    """The part is in our journal."""

    group: Token
    commit: CommitId
    client: Name
    staged: Several[StagedPart] = ()
    """What is here of the stages that are to be published."""


class PartRefused(Message, frozen=True):
    """The part cannot be carried out here: the number of the error, and a sentence for the client."""

    group: Token
    commit: CommitId
    client: Name
    number: Number
    text: Name


class Decision(Message, frozen=True):
    """Whether a commit happens."""

    sender: GroupDescriptor
    group: Token
    commit: CommitId
    client: Name
    happens: bool


class PartDone(Message, frozen=True):
    """The part has been carried out: where its batches went, None if that is not known any more."""

    group: Token
    commit: CommitId
    client: Name
    stored: StoredParts | None
    extents: Several[Extent] = ()
    """The same, of stages that were published."""


class AskDecision(Message, frozen=True):
    """A part of this commit waits here: does it happen?"""

    sender: GroupDescriptor
    commit: CommitId
    client: Name


CommitMessage = PreparePart | PartPrepared | PartRefused | Decision | PartDone | AskDecision
