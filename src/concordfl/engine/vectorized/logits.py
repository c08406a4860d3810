"""The outputs of many clients' networks at once, without gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core import Model, Params
from .fit import num_together
from .network import ManyNetworks, rows_of
from .requests import Joined, LogitsRequest

ROWS_AT_A_TIME = 4096
MAX_ROWS_PER_CLIENT = 512


def logits_together(
    requests: Sequence[LogitsRequest], model: Model, networks: ManyNetworks
) -> list[list[Tensor]]:
    """(N, O) for each of the models of each request, all of one kind."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].data))
    sorted_requests = [requests[i] for i in order]
    by_model = []
    for k in range(len(requests[0].models)):
        models = [request.models[k] for request in sorted_requests]
        if all(params is models[0] for params in models):
            by_model.append(_of_one_model(sorted_requests, models[0], model))
        else:
            by_model.append(_of_own_models(sorted_requests, models, model, networks))
    found: list[list[Tensor]] = [[]] * len(requests)
    for place, i in enumerate(order):
        found[i] = [outputs[place] for outputs in by_model]
    return found


def _of_one_model(requests: Sequence[LogitsRequest], params: Params, model: Model) -> list[Tensor]:
    joined = Joined.of([request.data for request in requests])
    lengths = [len(request.data) for request in requests]
    rows = torch.cat(
        [torch.arange(start, start + n) for start, n in zip(joined.starts, lengths, strict=True)]
    )
    parts = [
        model.logits(params, joined.examples.inputs(some))
        for some in torch.split(rows, ROWS_AT_A_TIME)
    ]
    return list(torch.split(torch.cat(parts), lengths))


@torch.no_grad()
def _of_own_models(
    requests: Sequence[LogitsRequest],
    models: Sequence[Params],
    model: Model,
    networks: ManyNetworks,
) -> list[Tensor]:
    """In the order of the requests, the longest first; shorter ones are filled up."""
    found: list[Tensor] = []
    width = num_together(model, min(MAX_ROWS_PER_CLIENT, len(requests[0].data)))
    for at in range(0, len(requests), width):
        some = requests[at : at + width]
        stacked = rows_of(models[at : at + width], model)
        joined = Joined.of([request.data for request in some])
        lengths = torch.tensor([len(request.data) for request in some])
        starts, longest = torch.tensor(joined.starts), int(lengths[0])
        parts = []
        for first in range(0, longest, MAX_ROWS_PER_CLIENT):
            places = torch.arange(first, min(first + MAX_ROWS_PER_CLIENT, longest))
            rows = starts[:, None] + torch.minimum(places, lengths[:, None] - 1)
            outputs = networks(stacked, joined.examples.inputs(rows.reshape(-1)))
            parts.append(outputs.reshape(len(some), len(places), -1))
        whole = torch.cat(parts, dim=1)
        found += [whole[i, :n].clone() for i, n in enumerate(lengths.tolist())]
    return found
