"""`tune` in Python: settings chosen on validation data, for clients in memory or in files."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .by_name import registered
from .core import SettingError
from .core.own_code import is_given
from .core.settings import received
from .inputs import Inputs, ModelLike, read_inputs, refuse_one_method
from .study import tune as study
from .study.grid import Grid
from .study.tune import Tuning


def tune(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    algorithms: Sequence[str],
    grid: Grid | None = None,
    seeds: int = 1,
    rungs: int | None = None,
    clients: object = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    model: ModelLike | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Tuning:
    """The best settings of each method on validation data, by successive halving.

    algorithms: names, of ours or of your own as `package.module:Class`.
    grid: the values to try by setting, such as `{"training.lr": [0.01, 0.1]}`; by default learning
        rates around the given one.
    rungs: how often settings are judged, half of them dropped each time.

    All else is as in `run`. With `out` the runs are kept there, and the same call goes on with
    them. The table of the result is what `run` and `compare` take as their source.
    """
    is_list = isinstance(algorithms, Sequence) and not isinstance(algorithms, str)
    if not is_list or not all(isinstance(one, str) for one in algorithms):
        raise SettingError(f"algorithms must be a list of names, got {received(algorithms)}")
    refuse_one_method(settings)
    inputs = read_inputs(
        source, clients=clients, client=client, label=label, model=model, **settings
    )
    if out is not None:
        _refuse_used(inputs, Path(out))
    with tempfile.TemporaryDirectory() as elsewhere:
        return study.tune(
            inputs.table,
            [registered(one) for one in algorithms],
            grid,
            out=elsewhere if out is None else out,
            seeds=seeds,
            rungs=rungs,
            objects=inputs.objects,
        )


def _refuse_used(inputs: Inputs, out: Path) -> None:
    """Folders are known by their settings, which do not tell objects of one name apart."""
    if is_given(inputs.config().model.name) and out.exists() and any(out.iterdir()):
        raise SettingError(
            "out must be new for a model that cannot be imported, as nothing tells whether it is "
            f"the same, got {out}"
        )
