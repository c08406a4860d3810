"""A client's predictions as one plain `nn.Module`, from examples in their own units to
probabilities.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..core import Predictor
from ..data import Preprocessing
from ..data.preprocessing import IMAGE_TYPE


class PrepareRows(nn.Module):
    """Rows of numbers, NaN where one is missing, standardised as the run did it."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        standard = preprocessing.standard
        self.mean = None if standard is None else nn.Buffer(torch.from_numpy(standard.mean))
        self.deviation = (
            None if standard is None else nn.Buffer(torch.from_numpy(standard.deviation))
        )

    def forward(self, rows: Tensor) -> Tensor:
        inputs = rows.float() if rows.is_floating_point() else rows
        if self.mean is not None and self.deviation is not None:
            present = torch.where(rows.isfinite(), rows.double(), self.mean)
            inputs = ((present - self.mean) / self.deviation).float()
        return inputs.permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs


class PrepareImages(nn.Module):
    """Images (N, H, W, C) of 0 to 255, as a network takes them."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        scale = preprocessing.scale
        self.mean = None if scale is None else nn.Buffer(scale.mean)
        self.deviation = None if scale is None else nn.Buffer(scale.deviation)

    def forward(self, images: Tensor) -> Tensor:
        inputs = images.permute(0, 3, 1, 2).float() / 255
        if self.mean is None or self.deviation is None:
            return inputs
        return (inputs - self.mean) / self.deviation


class DeployedModel(nn.Module):
    """(N, Y) class probabilities of examples as users have them, by the order of `classes`; of
    targets that are no classes, what is predicted of each in its own unit.

    `prepare` brings examples into the form that the networks in `predictor` take. Nothing of
    concordfl is needed to call it, and none of its parameters is shared with the run.
    """

    def __init__(self, prepare: nn.Module, predictor: nn.Module, facts: dict[str, Any]) -> None:
        super().__init__()
        self.prepare, self.predictor = prepare, predictor
        self.classes: tuple[str, ...] = tuple(facts["classes"])
        self.targets: tuple[str, ...] = tuple(facts.get("targets", ()))
        self.features: tuple[str, ...] = tuple(facts.get("features", ()))

    def forward(self, examples: Tensor) -> Tensor:
        return cast(Tensor, self.predictor(self.prepare(examples))).float()


def deployed_model(predictor: Predictor, preprocessing: Preprocessing) -> DeployedModel:
    """What `predictor` predicts, as a module of raw examples, in eval mode and on the CPU."""
    algorithm, client, state, message = predictor
    is_images = preprocessing.dtype == IMAGE_TYPE
    prepare = (PrepareImages if is_images else PrepareRows)(preprocessing)
    module = algorithm.module(client, state, message)
    if (unit := client.objective.unit()) is not None:
        module = nn.Sequential(module, unit)
    whole = DeployedModel(prepare, module, preprocessing.to_record())
    whole.requires_grad_(False)
    return whole.cpu().eval()


def example_input(preprocessing: Preprocessing) -> Tensor:
    """Two examples of the kind that the module takes: what it is traced with."""
    shape = preprocessing.input_shape
    stored = (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape
    kind = np.uint8 if preprocessing.dtype == IMAGE_TYPE else np.float32
    return torch.from_numpy(np.zeros((2, *stored), kind))
