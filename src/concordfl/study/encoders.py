"""What clients' encoders know of labels and of inputs: appendix C of the FedConcat paper (tables 6
and 7).

An encoder stands still. A linear classifier and a decoder are trained on its features; their losses
on the same examples estimate I(f(X); Y) and I(f(X); X): the smaller a loss, the more is known. The
paper says neither what the decoder is nor how both are trained: one hidden layer, the squared
error of an input's values and `PROBE` are ours.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import TypedDict  # pydantic cannot use that of typing before Python 3.12

from ..core import (
    Batch,
    Client,
    ClientId,
    Examples,
    Params,
    SettingError,
    Training,
    tree,
    weighted_loss,
)
from ..deploy.finished import FinishedRun

PROBE = Training(optimizer="adam", lr=0.01, batch_size=32, epochs=50)
HIDDEN = 256  # units of the decoder


class Losses(TypedDict):
    classification: float
    reconstruction: float


class EncoderTables(TypedDict):
    classes: dict[ClientId, list[int]]  # of the two clients
    exchange: dict[str, Losses]  # table 6: each client's data under its own and the other's encoder
    together: dict[str, Losses]  # table 7: both clients' data


def encoder_tables(finished: FinishedRun) -> EncoderTables:
    """Of the first two participants of a run of `local`."""
    federation = finished.federation()
    ids = federation.participants[:2]
    if finished.name != "local" or len(ids) < 2:
        raise SettingError(
            f"encoders are exchanged by two clients of a run of 'local', got {finished.name!r} "
            f"with {len(federation.participants)}"
        )
    splits = [federation.splits(id).train for id in ids]
    both = Examples(
        torch.cat([one.x for one in splits]),
        torch.cat([one.y for one in splits]),
        scale=splits[0].scale,
    )
    first, second = (cast(Params, finished.kept.state(id)) for id in ids)
    average = tree.mean([first, second])

    def losses(examples: Examples, *encoders: Params) -> Losses:
        client = finished.client("probe", examples)
        features = [client.over(None, partial(client.model.features, one)) for one in encoders]
        return probe(client, torch.cat(features, dim=1))

    return {
        "classes": {id: torch.unique(one.y).tolist() for id, one in zip(ids, splits, strict=True)},
        "exchange": {
            "f_e1, own": losses(splits[0], first),
            "f_e1, exchanged": losses(splits[0], second),
            "f_e2, own": losses(splits[1], second),
            "f_e2, exchanged": losses(splits[1], first),
        },
        "together": {
            "f_e1": losses(both, first),
            "f_e2": losses(both, second),
            "f_avg": losses(both, average),
            "f_e": losses(both, first, second),
        },
    }


def probe(client: Client, features: Tensor) -> Losses:
    """The losses of a linear classifier and of a decoder, trained on `features` (N, D) of the
    client's examples.
    """
    prober = Client(
        client.id,
        Examples(features, client.examples.y),
        objective=client.objective,
        model=client.model,
        training=PROBE,
        seed=client.seed,
        round=client.round,
    )
    wanted = client.examples.inputs().flatten(1)
    width = features.shape[1]
    with prober.random("probes").torch_global():
        classifier = nn.Linear(width, client.num_classes)
        decoder = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, wanted.shape[1])
        )

    def classification(outputs: Tensor, batch: Batch) -> Tensor:
        return client.objective.losses(outputs, batch.y)

    def reconstruction(outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - wanted[batch.index]).square().mean(1)

    return {
        "classification": _trained_loss(prober, classifier, classification),
        "reconstruction": _trained_loss(prober, decoder, reconstruction),
    }


def _trained_loss(
    client: Client, module: nn.Module, losses: Callable[[Tensor, Batch], Tensor]
) -> float:
    """The mean of `losses` (N,) when `module` has been trained on the client's examples."""

    def loss(params: Params, batch: Batch) -> Tensor:
        return weighted_loss(losses(functional_call(module, params, batch.x), batch), batch)

    start = {name: value.detach() for name, value in module.named_parameters()}
    trained = client.descend(start, loss, purpose=type(module).__name__)
    x, y = client.examples.x, client.examples.y
    everything = Batch(x, y, None, torch.arange(len(y)))
    with torch.no_grad():
        return float(loss(trained, everything))
