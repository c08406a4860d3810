"""The parts of a run, made from its configuration: clients, network, the set-up of nodes."""

from functools import partial

import torch

from .config import Config
from .core import Key, Model, SettingError
from .data import Federation
from .engine.setup import Setup
from .scenarios import build_federation


def make_federation(settings: Config) -> Federation:
    key = Key(settings.run.seed, "federation")
    data = settings.data.load(key.child("data"))
    federation = build_federation(
        data, settings.scenario, key, standardise=settings.data.standardise
    )
    return federation.with_pooled_client() if settings.algorithm.pools_data else federation


def make_model(settings: Config, federation: Federation) -> Model:
    """The network with the method's additions, after a look whether its output fits the labels."""
    example = federation.splits(federation.participants[0]).train.inputs(slice(0, 1))
    try:
        model = model_from(settings, federation.input_shape, federation.num_classes)
        outputs = model.logits(model.init(0), example)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"model {settings.model.name!r} must take examples of shape {federation.input_shape}: "
            f"{reason}"
        ) from None
    if outputs.shape != (1, federation.num_classes):
        rule = f"must give {federation.num_classes} outputs, one per class"
        raise SettingError(f"model {settings.model.name!r} {rule}, got {tuple(outputs.shape[1:])}")
    return model


def model_from(settings: Config, input_shape: tuple[int, ...], num_classes: int) -> Model:
    build = settings.model.builder(input_shape, num_classes)
    return Model(
        build,
        partial(settings.algorithm.network, num_classes=num_classes),
        _device(settings.run.device),
        settings.model.further_builder(),
    )


def make_setup(settings: Config, model: Model, num_classes: int) -> Setup:
    """What every node of the run is configured with."""
    return Setup(
        settings.algorithm,
        model,
        settings.training,
        num_classes,
        settings.run.seed,
        settings.aggregation,
        settings.run.on_error,
    )


def _device(name: str) -> str:
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(device for device, present in available.items() if present)
    if not available[name]:
        raise SettingError(f"run.device must be present, got {name!r} on a machine without it")
    return name
