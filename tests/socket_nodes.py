"""Nodes in another process, one per client, behind plain sockets: only the protocol's bytes cross.

The other process makes its nodes by itself, from the name of a case.
"""

import hashlib
import socket
import struct
import threading

from concordfl.core import FormatError, Missing, Order, Outcome
from concordfl.core.protocol import DROPPED_OUT, FAILED, TIMED_OUT
from concordfl.engine.client_states import MemoryStates
from concordfl.engine.executors import fork_server
from concordfl.engine.node import Node
from concordfl.engine.tree_sum import NOTHING, TreeSum


def send(wire, data):
    wire.sendall(struct.pack("<Q", len(data)) + data)


def receive(wire, size=None):
    size = struct.unpack("<Q", receive(wire, 8))[0] if size is None else size
    data = b""
    while len(data) < size:
        data += (part := wire.recv(size - len(data)))
        if not part:
            raise ConnectionError("the other side is gone")
    return data


def serve(wire, id, setup, federation, garbles):
    """A client's life, in the other process."""
    node = Node(setup, federation, states := MemoryStates(), secret=0)
    while True:
        kind, data = (message := receive(wire))[:1], message[1:]
        if kind == b"O":
            outcome = node.perform(Order.from_bytes(data).check()).to_bytes()
            send(wire, b"garbage" if garbles else outcome)
        elif kind == b"P":
            name, _, published = data.partition(b"\0")
            node.publish(name.decode(), published)
        elif kind == b"H":
            send(wire, hashlib.sha256(states.get(id) or b"").hexdigest().encode())
        else:
            node.commit(1) if kind == b"C" else node.discard()


def host(port, make, case, garbler):
    for id in make(case)[1].bounds:
        wire = socket.create_connection(("127.0.0.1", port))
        send(wire, id.encode())
        threading.Thread(target=serve, args=(wire, id, *make(case), id == garbler)).start()


class SocketExecutor:
    name = "socket"

    def __init__(self, make, case, garbler=None, timeout=60.0):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            args = (listener.getsockname()[1], make, case, garbler)
            self.process = fork_server.context().Process(target=host, args=args)
            fork_server.start(self.process)
            wires = [listener.accept()[0] for _ in make(case)[1].bounds]
        self.wires = {receive(wire).decode(): wire for wire in wires}
        for wire in wires:
            wire.settimeout(timeout)

    def perform(self, order):
        total, replies, sent, missing = TreeSum(len(order.clients)), {}, {}, {}
        for index, id in enumerate(order.clients):
            one = Outcome(None, {}, {id: Missing(DROPPED_OUT)})
            if id not in order.dropped:
                one = self.perform_at(id, order.only((id,)))
            sent, missing = sent | one.sent, missing | one.missing
            total.put(index, one.value if one.sent and order.wanted == "total" else NOTHING)
            replies |= one.value if one.sent and order.wanted == "replies" else {}
        value = total.value if order.wanted == "total" and sent else replies
        return Outcome(value, sent, missing)

    def perform_at(self, id, order):
        try:
            send(self.wires[id], b"O" + order.to_bytes())
            return Outcome.from_bytes(receive(self.wires[id])).check(order)
        except TimeoutError:
            self.wires[id].close()  # what may still come would answer another order
            return Outcome(None, {}, {id: Missing(TIMED_OUT, "no answer in time")})
        except (FormatError, OSError) as error:
            return Outcome(None, {}, {id: Missing(FAILED, str(error))})

    def tell(self, message):
        for wire in self.wires.values():
            if wire.fileno() >= 0:
                send(wire, message)

    def publish(self, name, data):
        self.tell(b"P" + name.encode() + b"\0" + data)

    def commit(self, round):
        self.tell(b"C")

    def discard(self):
        self.tell(b"D")

    def digests(self):
        self.tell(b"H")
        return {id: receive(wire).decode() for id, wire in self.wires.items()}

    def close(self):
        self.process.kill()
        self.process.join()
        for wire in self.wires.values():
            wire.close()
