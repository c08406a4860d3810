"""The training of many clients at once: the same batches, and the same steps, as one by one.

Clients are sorted by their number of steps: whoever has fewer leaves from the end, and stops
changing. A batch that is shorter than others is filled up with its last example, which then counts
0; every client's losses are divided by its own batch size.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import Model, Params, tree
from ...core.client import batches_per_epoch, weights_of
from .network import ManyNetworks, rows_of
from .requests import FitRequest, Joined

WORKING_SET_BYTES = 4 * 2**20  # of clients that are trained at a time: about what a cache holds
MIN_TOGETHER, MAX_TOGETHER = 16, 512
PARAMETER_COPIES = 3  # parameters, gradients and momentum


def fit_together(
    requests: Sequence[FitRequest], model: Model, networks: ManyNetworks
) -> list[Params]:
    """What `fit` gives each of the clients, whose requests are of one kind."""
    steps = [_num_steps(request, model) for request in requests]
    order = sorted(range(len(requests)), key=lambda i: (-steps[i], -len(requests[i].data)))
    width = num_together(model, requests[0].client.training.batch_size)
    found: list[Params] = [{}] * len(requests)
    for start in range(0, len(order), width):
        chosen = order[start : start + width]
        trained = _fit([requests[i] for i in chosen], [steps[i] for i in chosen], model, networks)
        for i, params in zip(chosen, trained, strict=True):
            found[i] = params
    return found


def num_together(model: Model, batch_size: int) -> int:
    """How many clients are computed at a time."""
    widths = sum(value.shape[0] for value in model.layout.values() if value.ndim == 2)
    per_client = 4 * (PARAMETER_COPIES * model.num_parameters + 2 * batch_size * widths)
    return min(max(WORKING_SET_BYTES // per_client, MIN_TOGETHER), MAX_TOGETHER)


class Batches(NamedTuple):
    """The mini-batches of several clients, sorted by their number of steps."""

    rows: Tensor  # (C, S, B) of the joined examples
    sizes: Tensor  # (C, S) how many of the B count
    active: list[int]  # (S,) how many clients have such a step
    longest: list[int]  # (S,) the largest of the sizes
    full: list[bool]  # (S,) whether all are as large


def _num_steps(request: FitRequest, model: Model) -> int:
    size, batch_size = len(request.data), request.client.training.batch_size
    if request.steps >= 0:
        return request.steps
    return batches_per_epoch(size, batch_size, model) * request.epochs


def _fit(
    requests: Sequence[FitRequest], steps: Sequence[int], model: Model, networks: ManyNetworks
) -> list[Params]:
    client = requests[0].client
    training, objective = client.training, client.objective
    optimizer, rate = training.make_optimizer(), training.rate(client.round)
    stacked = rows_of([request.params for request in requests], model)
    names = [name for name in model.weight_names if name in requests[0].only]
    joined = Joined.of([request.data for request in requests])
    weights, shifts = _weights(requests, joined)
    batches = _batches(requests, steps, joined.starts)
    live, state, clients = stacked, None, 0
    for step, active in enumerate(batches.active):
        if active != clients:
            clients = active
            live = {name: value[:clients].detach() for name, value in stacked.items()}
            trainable = [live[name].requires_grad_() for name in names]
            state = optimizer.init(trainable) if state is None else _first(state, clients)
        rows = batches.rows[:clients, step, : batches.longest[step]]
        flat = rows.reshape(-1)
        outputs = networks(live, joined.examples.inputs(flat))
        losses = objective.losses(outputs, joined.examples.y.index_select(0, flat))
        if weights is not None:
            chosen = (rows + shifts[:clients]).reshape(-1)
            losses = losses * weights.index_select(0, chosen).to(losses.dtype)
        loss = _mean_losses(losses, batches, step, clients)
        grads = torch.autograd.grad(loss, trainable, allow_unused=True, materialize_grads=True)
        state = optimizer.update(trainable, list(grads), state, rate)
    parts = {name: value.detach().unbind(0) for name, value in stacked.items()}
    return [{name: values[i] for name, values in parts.items()} for i in range(len(requests))]


def _mean_losses(losses: Tensor, batches: Batches, step: int, clients: int) -> Tensor:
    """The sum over clients of each one's losses, divided by its batch size."""
    longest = batches.longest[step]
    if batches.full[step]:
        return losses.sum() / longest
    sizes = batches.sizes[:clients, step, None]  # (C, 1)
    counts = torch.arange(longest) < sizes  # (C, B)
    return (losses * (counts / sizes).to(losses.dtype).reshape(-1)).sum()


def _first(state: Any, clients: int) -> Any:
    """An optimizer's state of the first clients alone; counts of steps are common to all."""
    return tree.map(
        lambda leaf: leaf[:clients] if isinstance(leaf, Tensor) and leaf.ndim else leaf, state
    )


def _weights(requests: Sequence[FitRequest], joined: Joined) -> tuple[Tensor | None, Tensor]:
    """The weights of the clients' examples one after the other, and (C, 1) how far they are from
    the examples' rows.
    """
    each = [weights_of(request.client, request.data, request.weight) for request in requests]
    known = [weight for weight in each if weight is not None]
    if not known:
        return None, torch.zeros(len(requests), 1, dtype=torch.int64)
    sizes = torch.tensor([len(weight) for weight in known])
    starts = sizes.cumsum(0) - sizes
    return torch.cat(known), (starts - torch.tensor(joined.starts)).unsqueeze(1)


def _batches(
    requests: Sequence[FitRequest], steps: Sequence[int], starts: Sequence[int]
) -> Batches:
    batch_size = requests[0].client.training.batch_size
    longest = min(batch_size, max(len(request.data) for request in requests))
    rows = np.zeros((len(requests), steps[0], longest), dtype=np.int64)
    sizes = np.zeros((len(requests), steps[0]), dtype=np.int64)
    for i, (request, count, start) in enumerate(zip(requests, steps, starts, strict=True)):
        _fill(rows[i], sizes[i], request, count, batch_size)
        rows[i] += start
    most = sizes.max(axis=0)
    return Batches(
        torch.from_numpy(rows),
        torch.from_numpy(sizes),
        active=(sizes > 0).sum(axis=0).tolist(),
        longest=most.tolist(),
        full=((sizes == most) | (sizes == 0)).all(axis=0).tolist(),
    )


def _fill(
    rows: np.ndarray, sizes: np.ndarray, request: FitRequest, steps: int, batch_size: int
) -> None:
    """The batches of one client, as `Client.fold` makes them."""
    size = len(request.data)
    whole, rest = divmod(size, batch_size)
    per_epoch = whole + bool(rest)
    for epoch in range(-(-steps // per_epoch)):
        order = request.client.shuffle(request.purpose, epoch, size).numpy()
        first = epoch * per_epoch
        last = min(whole, steps - first)  # of the whole batches, those that are wanted
        if last > 0:
            rows[first : first + last] = order[: last * batch_size].reshape(last, batch_size)
            sizes[first : first + last] = batch_size
        if rest and steps - first > whole:
            rows[first + whole, :rest] = order[whole * batch_size :]
            rows[first + whole, rest:] = order[-1]
            sizes[first + whole] = rest
