"""Flower's Grid as a carrier: the protocol's bytes as the one array of a message."""

from collections.abc import Mapping, Sequence

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ...core import FormatError
from .meeting import Lost, NodeId, Ticket

RECORD, ARRAY, SERIALISATION = "concordfl", "parcel", "concordfl.tree"
# No answer, but the node may be asked again.
GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
ERROR_NAMES = {code: name for name, code in vars(ErrorCode).items() if isinstance(code, int)}


def to_record(data: bytes) -> RecordDict:
    """As an array, which Flower sends in pieces where it is long."""
    array = Array("uint8", (len(data),), SERIALISATION, data)
    return RecordDict({RECORD: ArrayRecord({ARRAY: array})})


def from_record(content: RecordDict) -> bytes:
    record = content.get(RECORD)
    array = record.get(ARRAY) if isinstance(record, ArrayRecord) else None
    if not isinstance(array, Array) or array.stype != SERIALISATION:
        raise FormatError("a message must hold one array of concordfl's, got another")
    data: bytes = array.data
    return data


class GridCarrier:
    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self._grid.get_node_ids())

    def send(self, node: NodeId, data: bytes, seconds: float) -> Ticket | None:
        message = Message(to_record(data), node, MessageType.QUERY, ttl=seconds)
        # One by one: together they might be longer than Flower takes.
        tickets = list(self._grid.push_messages([message]))
        return tickets[0] if tickets and tickets[0] else None

    def collect(self, tickets: Sequence[Ticket]) -> Mapping[Ticket, bytes | Lost]:
        if not tickets:
            return {}
        found: dict[Ticket, bytes | Lost] = {}
        for message in self._grid.pull_messages(tickets):
            ticket = message.metadata.reply_to_message_id
            if ticket in tickets:
                found[ticket] = _read(message)
        return found


def _read(message: Message) -> bytes | Lost:
    """Of an error the name alone: its text may be long."""
    if message.has_error():
        code = message.error.code
        name = ERROR_NAMES.get(code, "UNKNOWN")
        return Lost(f"Flower says {name}", is_gone=code in GONE)
    try:
        return from_record(message.content)
    except FormatError as error:
        return Lost(str(error), is_gone=False)
