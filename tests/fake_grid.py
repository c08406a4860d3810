"""Flower's Grid in memory: nodes that answer at once, by the ClientApp."""

import itertools

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from concordfl.engine.flower import client
from concordfl.engine.flower.carrier import from_record


def be_an_app():
    """What Flower says of the process that it runs an app in; no message is made without it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class FakeGrid:
    """`node_configs` by node id; `seen` are the bytes of every message, both ways."""

    def __init__(self, node_configs):
        be_an_app()
        self.node_configs, self.replies, self.seen = node_configs, {}, []
        self.numbers = itertools.count(1)
        self.before = lambda: None

    def get_node_ids(self):
        return list(self.node_configs)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        self.before()
        id = f"message-{next(self.numbers)}"
        message.metadata.__dict__["_message_id"] = id
        config = self.node_configs[message.metadata.dst_node_id]
        context = Context(1, message.metadata.dst_node_id, config, RecordDict(), {})
        self.replies[id] = client.app(message, context)
        self.seen += [from_record(each.content) for each in (message, self.replies[id])]
        return id

    def pull_messages(self, message_ids):
        return [self.replies.pop(id) for id in message_ids if id in self.replies]
