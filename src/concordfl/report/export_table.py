"""A comparison as a tidy table: a row per method and seed, a column per figure."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import SettingError
from .tables import last_ten_of

Figures = Mapping[str, Any]


def check(file: Path) -> None:
    """Refuse a file that could not be written."""
    if file.suffix.lower() != ".csv":
        raise SettingError(f"--export must be a .csv file, got {file}")
    if not file.parent.is_dir():
        raise SettingError(f"--export must be in a folder that exists, got {file}")


def to_csv(runs: Mapping[str, Sequence[Figures]], seeds: Sequence[int]) -> str:
    """CSV text. What a run does not have is empty."""
    rows = list(tidy(runs, seeds))
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def tidy(
    runs: Mapping[str, Sequence[Figures]], seeds: Sequence[int]
) -> Iterator[dict[str, str | int | float]]:
    """The figures of every run by name: `final.local_accuracy`, `bytes.down`, ..."""
    for row, figures in runs.items():
        for seed, run in zip(seeds, figures, strict=True):
            yield {"method": row, "seed": seed, **_flat(run)}


def _flat(run: Figures) -> dict[str, str | int | float]:
    parts = {
        "rounds": run.get("rounds"),
        "clients": run.get("clients"),
        "parameters": run.get("parameters"),
        **{f"final.{name}": value for name, value in run["final"].items()},
        **{f"selected.{name}": value for name, value in (run.get("selected") or {}).items()},
        "selected_on": run.get("selected_on"),
        **{f"last_ten.{name}": value for name, value in (last_ten_of(run) or {}).items()},
        **{f"clusters.{name}": value for name, value in (run.get("clusters") or {}).items()},
        "groups": "+".join(map(str, run.get("group_sizes") or [])),
        **{f"bytes.{name}": value for name, value in run["bytes"].items()},
        **{f"missing.{name}": value for name, value in (run.get("missing") or {}).items()},
        "seconds": run["seconds"]["total"],
        "warnings": " ".join(each["kind"] for each in run.get("warnings") or []),
    }
    return {name: value for name, value in parts.items() if isinstance(value, (str, int, float))}
