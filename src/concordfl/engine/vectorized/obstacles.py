"""Whether clients of a run can be computed together, found out by looking and by trying."""

import torch
from torch import Tensor, nn

from ...core import Model
from .network import ManyNetworks, rows_of

TOLERANCE = 1e-5  # how far results may be from those of clients computed one by one
NUM_TRIAL_CLIENTS, NUM_TRIAL_ROWS = 2, 3


def find_obstacle(model: Model, example: Tensor) -> str | None:
    """What in a network forbids it, in words; None if nothing does. `example` (1, ...) is an input.

    Only dense layers may have parameters; what stands between them must work row by row, and
    always give the same.
    """
    if model.device.type != "cpu":
        return f"the device {model.device}"
    if model.buffer_names:
        return f"a network with running statistics or other buffers ({model.buffer_names[0]})"
    module = model.trainable_copy()
    dense = {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if type(layer) is nn.Linear
        for name, _ in layer.named_parameters()
    }
    others = [name for name in model.weight_names if name not in dense]
    if others:
        owner = module.get_submodule(others[0].rpartition(".")[0])
        return f"a network with other than dense layers ({type(owner).__name__})"
    if not dense:
        return "a network without dense layers"
    return None if _agrees(model, example) else "a network that does not work row by row"


def _agrees(model: Model, example: Tensor) -> bool:
    """Whether two clients together give what each gives by itself."""
    starts = [model.init(0, index=k) for k in range(NUM_TRIAL_CLIENTS)]
    noise = torch.Generator().manual_seed(0)
    shape = (NUM_TRIAL_CLIENTS * NUM_TRIAL_ROWS, *example.shape[1:])
    rows = example + torch.randn(shape, generator=noise)
    try:
        with torch.no_grad():
            together = ManyNetworks(model)(rows_of(starts, model), rows)
        apart = [
            model.logits(params, part)
            for params, part in zip(starts, torch.split(rows, NUM_TRIAL_ROWS), strict=True)
        ]
    except Exception:  # a user's network may fail in any way
        return False
    expected = torch.cat(apart)
    return together.shape == expected.shape and torch.allclose(
        together, expected, rtol=TOLERANCE, atol=TOLERANCE
    )
