"""The parts of a run, made from its configuration: clients, network, the set-up of nodes."""

from dataclasses import replace
from functools import partial

import torch

from .algorithms import ALGORITHMS
from .by_name import algorithm_name, require_method
from .config import Config
from .core import (
    Algorithm,
    Classification,
    Key,
    Model,
    MultiLabel,
    Objective,
    ObjectiveChoice,
    Regression,
    SettingError,
    tree,
)
from .core.own_code import names_own_code
from .data import Dataset, Federation, memory
from .data.memory import Memory
from .data.preprocessing import Preprocessing, kind_of_targets
from .data.targets import decide
from .data.text import reason
from .engine.setup import Setup
from .scenarios import build_federation


def load_data(settings: Config) -> Dataset:
    """The examples of a run, of a kind that its method can learn."""
    require_method(settings.algorithm)
    data = settings.data.load(federation_key(settings).child("data"))
    data = decide(data, settings.objective.kind)
    kind = kind_of_targets(data.train.y)
    require_support(settings.algorithm, kind)
    settings.objective.refuse_unused(kind)
    if kind != "classification" and settings.data.without is not None:
        raise SettingError(
            f"data.without must be about classes, got {list(settings.data.without)} for {kind}"
        )
    return data


def make_federation(settings: Config, data: Dataset | None = None) -> Federation:
    """The clients of a run; `data` are its examples where they have been loaded already."""
    federation = build_federation(
        load_data(settings) if data is None else data,
        settings.scenario,
        federation_key(settings),
        standardise=settings.data.standardise,
    )
    return federation.with_pooled_client() if settings.algorithm.pools_data else federation


def require_support(algorithm: Algorithm, kind: str) -> None:
    """Refuse a method for what it cannot learn, and say which methods can."""
    if kind not in algorithm.supports:
        able = [name for name, method in ALGORITHMS.items() if kind in method.supports]
        raise SettingError(
            f"{algorithm_name(algorithm)} is for {' and '.join(sorted(algorithm.supports))}, got "
            f"data for {kind}: methods for {kind} are {', '.join(able)}"
        )


def make_objective(settings: Config, federation: Federation) -> Objective:
    """What the run is to learn."""
    balanced = settings.objective.class_weights == "balanced"
    is_for_classes = federation.kind == "classification"
    weights = federation.balanced_weights() if balanced and is_for_classes else None
    return objective_from(settings.objective, federation.preprocessing, weights)


def objective_from(
    choice: ObjectiveChoice, data: Preprocessing, weights: tuple[float, ...] | None = None
) -> Objective:
    """What is to be learnt from data that are read so; `weights` are those of the classes."""
    if data.kind == "multi-label":
        return MultiLabel(len(data.targets))
    if data.kind == "classification":
        return Classification(len(data.classes), weights)
    standard = data.target_standard
    mean, deviation = ((), ()) if standard is None else (tuple(p.tolist()) for p in standard)
    return Regression(len(data.targets), choice.likelihood, choice.deviation, mean, deviation)


def federation_key(settings: Config) -> Key:
    return Key(settings.run.seed, "federation")


def make_model(settings: Config, federation: Federation) -> Model:
    """The network with the method's additions, after a look whether its output fits the targets."""
    objective = make_objective(settings, federation)
    example = federation.splits(federation.participants[0]).train.inputs(slice(0, 1))
    try:
        model = model_from(settings, federation.input_shape, objective)
        outputs = model.logits(model.init(0), example)
    except (RuntimeError, ValueError, TypeError) as error:
        raise SettingError(
            f"model {settings.model.name!r} must take examples of shape {federation.input_shape}: "
            f"{reason(error)}"
        ) from None
    if outputs.shape != (1, objective.num_outputs):
        rule = f"must give {objective.num_outputs} outputs, {objective.outputs_are}"
        raise SettingError(f"model {settings.model.name!r} {rule}, got {tuple(outputs.shape[1:])}")
    return model


def model_from(settings: Config, input_shape: tuple[int, ...], objective: Objective) -> Model:
    build = settings.model.builder(input_shape, objective.num_outputs)
    return Model(
        build,
        partial(settings.algorithm.network, num_classes=objective.num_outputs),
        _device(settings.run.device),
        settings.model.further_builder(),
    )


def with_files(settings: Config) -> tuple[Config, dict[str, bytes]]:
    """The settings of a run with a folder, and the files that it keeps there to be resumable."""
    data = settings.data
    if not isinstance(data, Memory) or data.given is None:
        return settings, {}
    files = {memory.FILE_NAME: data.given.to_bytes()}
    return replace(settings, data=replace(data, memory=memory.FILE_NAME)), files


def identity_of(settings: Config, federation: Federation, model: Model) -> dict[str, str]:
    """What a run depends on beyond its settings, as hashes by name."""
    identity = {"data": federation.fingerprint()}
    if settings.model.given is not None:  # of which the settings tell no more than the name
        identity["model"] = tree.digest(model.init(settings.run.seed))
    return identity | network_identity(settings, model)


def network_identity(settings: Config, model: Model) -> dict[str, str]:
    """The network where it comes from a user's code, which may be another under the same name."""
    own = settings.model.given is not None or names_own_code(settings.model.name)
    return {"network": model.network_digest()} if own else {}


def make_setup(settings: Config, model: Model, objective: Objective) -> Setup:
    """What every node of the run is configured with."""
    require_method(settings.algorithm)
    return Setup(
        settings.algorithm,
        model,
        settings.training,
        objective,
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
