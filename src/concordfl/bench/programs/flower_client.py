"""The clients of flower_rounds.py; a module of its own, which Ray's workers can import."""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@lru_cache(maxsize=1)
def load(file: str) -> dict[str, Any]:
    """The workload; a worker that serves many clients reads it once."""
    torch.set_num_threads(1)
    content: dict[str, Any] = torch.load(file, weights_only=False, mmap=True)
    return content


@app.train()
def train(message: Message, context: Context) -> Message:
    """An epoch over the examples of one client."""
    workload = load(str(message.content.config_records["config"]["workload"]))
    number = int(context.node_config["partition-id"])
    x, y = workload["x"][number], workload["y"][number]
    module, size = workload["module"], workload["batch_size"]
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(
        module.parameters(), lr=workload["lr"], momentum=workload["momentum"]
    )
    order = torch.randperm(len(y))
    for start in range(0, len(y), size):
        batch = order[start : start + size]
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(module(x[batch]), y[batch]))
        optimizer.step()
    reply = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=reply, reply_to=message)
