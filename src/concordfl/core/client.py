"""Client: all that a client step may see, and the only loop over batches in the library."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .errors import SettingError
from .model import Model, Params
from .modules import PredictingNetwork
from .objective import Objective
from .optim import Training
from .random import Key
from .tree import Tree

ClientId = str
ModelId = str | int
Secret = str | int  # what a client draws privacy noise from; in simulation it may be a seed
Average = Literal["size", "equal"]  # how clients count in a mean: by their examples, or alike
Carry = TypeVar("Carry")
EVALUATION_BATCH = 512  # large enough to be fast, small enough for a cache


class Batch(NamedTuple):
    """A mini-batch: x (B, ...), y (B, ...), the examples' weights (B,) or None for 1, and their
    indices in the data (B,).
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody looks for here


class Scale(NamedTuple):
    """Mean and deviation of every channel (C, 1, 1) of images that are standardised."""

    mean: Tensor
    deviation: Tensor


class Examples:
    """Labelled examples of one client.

    Images are kept as they come (N, H, W, C), uint8 as 0..255.
    """

    def __init__(
        self, x: Tensor, y: Tensor, memo: dict[str, Any] | None = None, scale: Scale | None = None
    ) -> None:
        self.x, self.y, self.scale = x, y, scale
        self._memo: dict[str, Any] = {} if memo is None else memo

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor | slice = slice(None), *, scaled: bool = True) -> Tensor:
        """Examples as a network takes them: float; images (N, C, H, W) in channels-last layout.

        Images are in [0, 1], or standardised where the run asks for it and `scaled` is not off.
        """
        x = self.x[index] if isinstance(index, slice) else self.x.index_select(0, index)
        if x.ndim == 4:
            x = x.permute(0, 3, 1, 2)
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
            return (
                x
                if self.scale is None or not scaled
                else x.sub_(self.scale.mean).div_(self.scale.deviation)
            )
        return (
            x.clone() if isinstance(index, slice) else x
        )  # a network may begin with an operation in place

    def cached(self, name: str, compute: Callable[[], Any]) -> Any:
        """`compute()`, once per client, split and process: for what is derived from published
        things, such as frozen features.

        A memo of the executor: never part of a state or a message, forgotten whenever something is
        published anew.
        """
        if name not in self._memo:
            self._memo[name] = compute()
        return self._memo[name]


class Client:
    """One client during one step."""

    def __init__(
        self,
        id: ClientId,
        examples: Examples,
        *,
        objective: Objective,
        model: Model,
        training: Training,
        seed: int,
        round: int,
        published: Callable[[str], Tree] | None = None,
        has_state: bool = False,
        secret: Secret | None = None,
    ) -> None:
        self.id, self.examples, self.objective, self.model = id, examples, objective, model
        self.training, self.seed, self.round = training, seed, round
        self.has_state = has_state  # whether a step has left a state here before
        self._key, self._published, self._secret = Key(seed, round, id), published, secret
        self._folding = False  # inside `fold`, drop-out draws are keyed already
        self._latest: tuple[tuple[object, ...], Any] = ((), None)  # of `latest`

    @property
    def size(self) -> int:
        return len(self.examples)

    def weight(self, average: Average) -> int:
        """How often its reply counts in a mean over clients."""
        return self.size if average == "size" else 1

    @property
    def num_steps(self) -> int:
        """Mini-batches of the run's local epochs."""
        per_epoch = batches_per_epoch(self.size, self.training.batch_size, self.model)
        return per_epoch * self.training.epochs

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 where targets are no classes."""
        return self.objective.num_classes

    def random(self, purpose: str) -> Key:
        """A key of this client in this round; give every use its own purpose."""
        return self._key.child(purpose)

    def private_random(self, purpose: str) -> Key:
        """`random` from the client's own secret: for noise that the server cannot know."""
        if self._secret is None:
            raise SettingError(
                f"client {self.id!r} must have a secret to draw {purpose!r}, got none"
            )
        return Key(self._secret, self.round, self.id, purpose)

    def published(self, name: str) -> Tree:
        """What the server has published under `name`."""
        if self._published is None:
            raise SettingError(f"nothing has been published under {name!r}")
        return self._published(name)

    def label_counts(self, weight: Tensor | None = None) -> Tensor:
        """(Y,) how often each label occurs, examples counted by `weight` (N,), as doubles."""
        weight = torch.ones(self.size, dtype=torch.float64) if weight is None else weight.double()
        return torch.zeros(self.num_classes, dtype=torch.float64).index_add_(
            0, self.examples.y, weight
        )

    def latest(self, given: tuple[object, ...], compute: Callable[[], Carry]) -> Carry:
        """`compute()`, or what it was the last time if that was of these very objects: for what
        two hooks of a method need one after the other.
        """
        before, value = self._latest
        if len(before) != len(given) or any(a is not b for a, b in zip(before, given, strict=True)):
            value = compute()
            self._latest = given, value
        found: Carry = value
        return found

    # --- forward passes over all examples: eval mode, no gradient ---------------------------------

    def logits(self, params: Params, examples: Examples | None = None) -> Tensor:
        """(N, O) what the network gives for `examples`, by default this client's own."""
        return self.over(examples, lambda inputs: self.model.logits(params, inputs))

    def predictions(self, params: Params, examples: Examples) -> Tensor:
        """What the network predicts: (N, Y) class probabilities, or what the objective says."""
        return self.objective.predictions(self.logits(params, examples))

    def module(self, params: Params) -> nn.Module:
        """`predictions` at `params` as a module of its own, of inputs as the network takes
        them.
        """
        return PredictingNetwork(self.model.module(params), self.objective.readout())

    def losses(self, params: Params, examples: Examples | None = None) -> Tensor:
        """(N,) the loss of each example: its negative log-likelihood."""
        examples = self.examples if examples is None else examples
        return self.objective.losses(self.logits(params, examples), examples.y)

    def losses_each(
        self, models: Mapping[ModelId, Params], examples: Examples | None = None
    ) -> Tensor:
        """(N, K) the loss of each example under each model."""
        return torch.stack([self.losses(params, examples) for params in models.values()], dim=1)

    def best(self, models: Mapping[ModelId, Params]) -> ModelId:
        """The model with the least mean loss on this client's examples; the first of several."""
        return list(models)[int(self.losses_each(models).mean(0).argmin())]

    def over(self, examples: Examples | None, function: Callable[[Tensor], Tensor]) -> Tensor:
        """`function` of the inputs, in large batches, the results joined on the CPU."""
        examples = self.examples if examples is None else examples
        starts = range(0, max(len(examples), 1), EVALUATION_BATCH)
        return torch.cat(
            [function(examples.inputs(slice(at, at + EVALUATION_BATCH))).cpu() for at in starts]
        )

    # --- training ---------------------------------------------------------------------------------

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The losses weighted by example, divided by the batch size with or without weights."""
        outputs = self.model.logits(params, batch.x)
        return weighted_loss(self.objective.losses(outputs, batch.y), batch)

    def grad(self, loss: Callable[[Params, Batch], Tensor], params: Params, batch: Batch) -> Params:
        """The gradient of `loss` at `params` in train mode, by weight name, without buffers."""
        keyed = nullcontext() if self._folding else self._key.child("grad", "layers").torch_global()
        with keyed, self.model.trained(params) as (live, trainable):
            grads = torch.autograd.grad(
                loss(live, batch), trainable, allow_unused=True, materialize_grads=True
            )
        return dict(
            zip(self.model.weight_names, (grad.contiguous().cpu() for grad in grads), strict=True)
        )

    def fold(
        self,
        update: Callable[[Carry, Batch], Carry],
        carry: Carry,
        *,
        data: Examples | None = None,
        weight: Tensor | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        purpose: str = "fit",
    ) -> Carry:
        """`carry = update(carry, batch)` over shuffled mini-batches: `epochs` passes, or exactly
        `steps` batches.
        """
        outer, self._folding = self._folding, True
        try:
            with self._key.child(purpose, "layers").torch_global():
                for batch in self._batches(
                    self.examples if data is None else data, weight, epochs, steps, purpose
                ):
                    carry = update(carry, batch)
        finally:
            self._folding = outer
        return carry

    def fit(
        self,
        params: Params,
        loss: Callable[[Params, Batch], Tensor] | None = None,
        *,
        data: Examples | None = None,
        weight: Tensor | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        only: Collection[str] | None = None,
        purpose: str = "fit",
    ) -> Params:
        """Parameters trained from `params` on `loss(params, batch)`, by default `self.loss`.

        `weight` (N,) weighs the examples, `only` names the parameters to change. The optimizer's
        state starts anew.
        """
        loss = self.loss if loss is None else loss
        optimizer, rate = self.training.make_optimizer(), self.training.rate(self.round)
        with self.model.trained(params, only) as (live, trainable):

            def descend(state: Any, batch: Batch) -> Any:
                grads = list(
                    torch.autograd.grad(
                        loss(live, batch), trainable, allow_unused=True, materialize_grads=True
                    )
                )
                return optimizer.update(trainable, grads, state, rate)

            start = optimizer.init(trainable)
            self.fold(
                descend,
                start,
                data=data,
                weight=weight,
                epochs=epochs,
                steps=steps,
                purpose=purpose,
            )
            return self.model.snapshot()

    def descend(
        self,
        values: Params,
        loss: Callable[[Params, Batch], Tensor],
        *,
        data: Examples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        purpose: str = "descend",
    ) -> Params:
        """`fit` for tensors that are not the model's, such as a head on frozen features."""
        optimizer, rate = self.training.make_optimizer(), self.training.rate(self.round)
        live = {
            name: value.to(self.model.device, copy=True).requires_grad_()
            for name, value in values.items()
        }
        trainable = list(live.values())

        def update(state: Any, batch: Batch) -> Any:
            grads = list(torch.autograd.grad(loss(live, batch), trainable))
            return optimizer.update(trainable, grads, state, rate)

        self.fold(
            update,
            optimizer.init(trainable),
            data=data,
            epochs=epochs,
            steps=steps,
            purpose=purpose,
        )
        return {name: value.detach().cpu() for name, value in live.items()}

    def shuffle(self, purpose: str, epoch: int, size: int) -> Tensor:
        """(N,) the order in which an epoch goes through `size` examples."""
        return self._key.child(purpose, epoch).permutation(size)

    def _batches(
        self,
        data: Examples,
        weight: Tensor | None,
        epochs: int | None,
        steps: int | None,
        purpose: str,
    ) -> Iterator[Batch]:
        size, batch_size, device = len(data), self.training.batch_size, self.model.device
        weight = weights_of(self, data, weight)
        per_epoch = batches_per_epoch(size, batch_size, self.model)
        if steps is None:
            steps = per_epoch * (self.training.epochs if epochs is None else epochs)
        for step in range(steps if size else 0):
            epoch, number = divmod(step, per_epoch)
            if number == 0:
                order = self.shuffle(purpose, epoch, size)
            end = (number + 1) * batch_size if number < per_epoch - 1 else size
            index = order[number * batch_size : end]
            if self.model.needs_pairs and len(index) == 1:
                index = index.repeat(2)  # all there is: seen twice
            chosen = None if weight is None else weight.index_select(0, index).to(device)
            yield Batch(
                data.inputs(index).to(device),
                data.y.index_select(0, index).to(device),
                chosen,
                index,
            )


def weights_of(client: Client, data: Examples, weight: Tensor | None) -> Tensor | None:
    """(N,) how much each example counts: by `weight`, and by what the objective says of it."""
    return _product(weight, client.objective.weights(data.y))


def _product(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Of weights, None being 1."""
    if left is None or right is None:
        return right if left is None else left
    return left * right.to(left)


def batches_per_epoch(size: int, batch_size: int, model: Model) -> int:
    """A single last example joins the batch before it where the model needs batch statistics, which
    it alone has not.
    """
    alone = model.needs_pairs and size > 1 and size % batch_size == 1
    return -(-size // batch_size) - int(alone)


def weighted_loss(losses: Tensor, batch: Batch) -> Tensor:
    """(w * losses).sum() / batch size. Without weights w = 1, and the result agrees to the bit."""
    weighted = losses if batch.weight is None else losses * batch.weight.to(losses.dtype)
    return weighted.sum() / len(losses)
