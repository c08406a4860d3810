"""VectorClient: a client whose heavy requests are answered together with those of others."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core import Batch, Client, Examples, Params
from ...core.client import ModelId
from .lockstep import Ask
from .requests import ALONE, FitRequest, LogitsRequest

Loss = Callable[[Params, Batch], Tensor]


class VectorClient(Client):
    """In lockstep with others: `fit`, `logits` and what is made of them wait for the others.

    Whatever else it computes it computes by itself, as any client does.
    """

    def __init__(self, *arguments: Any, ask: Ask, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ask = ask
        # of torch's generator while no step draws from a key
        self._generator_seed = torch.default_generator.initial_seed()
        self._orders: dict[tuple[str, int, int], Tensor] = {}

    def shuffle(self, purpose: str, epoch: int, size: int) -> Tensor:
        """Drawn once: a mixture's models are all trained on the same batches."""
        key = (purpose, epoch, size)
        if key not in self._orders:
            self._orders[key] = super().shuffle(purpose, epoch, size)
        return self._orders[key]

    def fit(
        self,
        params: Params,
        loss: Loss | None = None,
        *,
        data: Examples | None = None,
        weight: Tensor | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        only: Collection[str] | None = None,
        purpose: str = "fit",
    ) -> Params:
        examples = self.examples if data is None else data
        names = frozenset(self.model.names if only is None else only)
        if (
            self._may_wait()
            and len(examples)
            and names <= set(self.model.names) <= set(params)
            and is_own_loss(loss, self)
        ):
            request = FitRequest(
                self,
                params,
                examples,
                weight,
                -1 if steps is None else steps,
                self.training.epochs if epochs is None else epochs,
                names,
                purpose,
            )
            answer = self._ask(request)
            if answer is not ALONE:
                found: Params = answer
                return found
        return super().fit(
            params,
            loss,
            data=data,
            weight=weight,
            epochs=epochs,
            steps=steps,
            only=only,
            purpose=purpose,
        )

    def logits(self, params: Params, examples: Examples | None = None) -> Tensor:
        return self._logits_each([params], examples)[0]

    def losses_each(
        self, models: Mapping[ModelId, Params], examples: Examples | None = None
    ) -> Tensor:
        examples = self.examples if examples is None else examples
        outputs = self._logits_each(list(models.values()), examples)
        return torch.stack([self.objective.losses(each, examples.y) for each in outputs], dim=1)

    def _logits_each(self, models: list[Params], examples: Examples | None) -> list[Tensor]:
        data = self.examples if examples is None else examples
        plain = len(data) and not any(
            value.requires_grad for each in models for value in each.values()
        )
        if plain and models and self._may_wait():
            answer = self._ask(LogitsRequest(self, models, data))
            if answer is not ALONE:
                found: list[Tensor] = answer
                return found
        return [super(VectorClient, self).logits(each, examples) for each in models]

    def _may_wait(self) -> bool:
        """Not while the network is being trained here, or torch draws from a key of this client:
        others would find both in use.
        """
        draws = torch.default_generator.initial_seed() != self._generator_seed
        return not (draws or self._folding or self.model.is_training)


def is_own_loss(loss: Loss | None, client: Client) -> bool:
    """Whether a loss is nothing but `client.loss`: itself, or a function that a client was bound
    to and that returns what `loss` of that client gives.
    """
    if loss is None or loss == client.loss:
        return True
    if not isinstance(loss, partial) or loss.keywords:
        return False
    probe: Any = Probe()
    arguments = [probe if value is client else value for value in loss.args]
    try:
        return loss.func(*arguments, probe.params, probe.batch) is probe.result
    except Exception:  # it asks for more than the loss
        return False


class Probe:
    """Stands for a client, to see whether a function does anything but ask for its loss."""

    def __init__(self) -> None:
        self.params, self.batch, self.result = object(), object(), object()

    def loss(self, params: object, batch: object) -> object:
        if params is not self.params or batch is not self.batch:
            raise TypeError("another loss is asked for")
        return self.result
