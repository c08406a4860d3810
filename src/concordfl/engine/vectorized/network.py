"""A dense network at the parameters of many clients at once.

It is the model's own network, given the rows of all clients one below the other. Only its dense
layers know of clients: each multiplies a client's rows by the client's own weights. Everything
between them works row by row and needs no change.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...core import Model, Params


class PerClientDense(torch.autograd.Function):
    """x (C, B, I), weight (C, O, I) and bias (C, O) to (C, B, O)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        turned = weight.transpose(1, 2)
        if bias is None:
            return torch.bmm(x, turned)
        return torch.baddbmm(bias.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad = grads[0]
        return (
            torch.bmm(grad, weight) if needs_x else None,
            # This way round the product is several times as fast where there are few outputs.
            torch.bmm(grad.transpose(1, 2), x) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
        )


class PerClientLinear(nn.Module):
    """In the place of a dense layer: rows (C * B, I) to (C * B, O)."""

    def __init__(self, has_bias: bool) -> None:
        super().__init__()
        self.has_bias = has_bias
        self.weight: Tensor
        self.bias: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        clients, outputs, _ = self.weight.shape
        x = rows.reshape(clients, -1, rows.shape[-1])
        bias = self.bias if self.has_bias else None
        found = cast(Tensor, PerClientDense.apply(x, self.weight, bias))  # type: ignore[no-untyped-call]
        return found.reshape(-1, outputs)


class ManyNetworks:
    """One network at the parameters of many clients."""

    def __init__(self, model: Model) -> None:
        self._module = model.trainable_copy()
        self._owners: dict[str, tuple[PerClientLinear, str]] = {}
        for prefix, layer in list(self._module.named_modules()):
            if type(layer) is nn.Linear:
                dense = PerClientLinear(layer.bias is not None)
                _replace(self._module, prefix, dense)
                for name in ("weight", "bias") if dense.has_bias else ("weight",):
                    self._owners[f"{prefix}.{name}" if prefix else name] = (dense, name)

    def __call__(self, params: Params, rows: Tensor) -> Tensor:
        """(C * B, O) the outputs for the clients' rows (C * B, ...), at params with a first axis
        over clients.
        """
        for name, (layer, attribute) in self._owners.items():
            setattr(layer, attribute, params[name])
        return cast(Tensor, self._module(rows))


def _replace(module: nn.Module, path: str, by: nn.Module) -> None:
    """Put a layer in the place of another, wherever the same one stands."""
    old = module.get_submodule(path)
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, by)


def stack(values: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """(C, ...) a copy of each, with a new first axis."""
    first = values[0]
    if all(value is first for value in values):
        return first.to(dtype).expand(len(values), *first.shape).clone()
    return torch.stack([value.to(dtype) for value in values])


def rows_of(params: Sequence[Params], model: Model) -> Params:
    """The parameters of several clients, stacked."""
    return {
        name: stack([each[name] for each in params], value.dtype)
        for name, value in model.layout.items()
    }
