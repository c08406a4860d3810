"""What clients agree on before they read their examples, from descriptions of their files.

    look      how a client's file looks          -> `agree_on_reading`: text columns, targets
    values    its categories and classes         -> `agree_on_values`: all but standardisation
    sums      of its training examples, encoded  -> `Preprocessing.with_standards`

Each step follows the rules by which files are joined in one process; whoever does not fit is
refused by name.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ..core import ClientId, DataError, FormatError
from ..core.objective import Kind
from .arrays import network_shape
from .columns import Column, TextValues, agree, feature_names, match_columns, text_columns
from .csv_table import columns_of
from .labels import require_several, sort_classes
from .own import Folder
from .own_tables import require_known
from .preprocessing import Preprocessing
from .samples import Form, require_same_form
from .targets import HOW_TO_SAY, TargetFacts, decide_kind, require_classes
from .text import quote


class Look(NamedTuple):
    """How a client's file looks: nothing of it is about one row."""

    examples: int
    form: Form
    targets: TargetFacts
    is_table: bool = False
    is_grey: bool = False  # of images in colours
    header: tuple[str, ...] = ()  # of a table, with columns that are no features
    texts: tuple[str, ...] = ()  # columns of a table that are not numbers alone
    times: tuple[str, ...] = ()  # as what the column of times can be read


class Values(NamedTuple):
    """What a client's text and classes are."""

    texts: dict[str, TextValues] = {}  # noqa: RUF012 - never changed: by column
    classes: tuple[str, ...] = ()
    num_withheld: int = 0  # targets that cannot be classes: how many different ones


class Reading(NamedTuple):
    """What is agreed on after all clients have had a look."""

    texts: tuple[str, ...]  # columns that are text at some client, and so at all
    kind: Kind
    examples: int  # of all clients
    has_text_targets: bool


LOOK, VALUES, READING = (TypeAdapter[Any](kind) for kind in (Look, Values, Reading))


def to_record(value: Look | Values | Reading) -> dict[str, Any]:
    """As plain values; `from_record` gives the same back."""
    return {name: _plain(part) for name, part in value._asdict().items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def from_record(adapter: TypeAdapter[Any], record: Any) -> Any:
    """What `to_record` gave; a peer may send anything else, which is refused."""
    try:
        return adapter.validate_python(record)
    except ValidationError:
        raise FormatError("a description must have the types of its fields, got others") from None


Looks = Mapping[ClientId, Look]


def agree_on_reading(looks: Looks, source: Folder, kind: str) -> Reading:
    """What follows from how the clients' files look; `kind` of objective the run asks for."""
    names, first = _names(looks), _first(looks)
    whose = f"client {quote(names[0])}"
    for name in names:
        if looks[name].is_table != first.is_table:
            kinds = ("arrays or images", "a table")
            raise DataError(
                f"client {quote(name)}: the data must be {kinds[first.is_table]} as those of "
                f"{whose}, got {kinds[looks[name].is_table]}"
            )
    if first.is_table:
        require_known(source.drop or (), (look.header for look in looks.values()))
        for name in names:
            features = looks[name].form.features
            match_columns(first.form.features, features, f"client {quote(name)}", whose)
        if source.time is not None:
            _require_same_times(looks, source.time)
    else:
        for name in names:
            require_same_form(looks[name].form, first.form, f"client {quote(name)}", whose)
        source.refuse_columns()
    facts = [looks[name].targets for name in names]
    if all(each.only is not None and each.only == facts[0].only for each in facts):
        require_several([facts[0].only or ""])
    return Reading(
        tuple(sorted(text_columns(look.texts for look in looks.values()))),
        _decide_kind(dict(zip(names, facts, strict=True)), _targets(source, first), kind),
        sum(look.examples for look in looks.values()),
        any(each.text is not None for each in facts),
    )


def agree_on_values(
    looks: Looks, values: Mapping[ClientId, Values], reading: Reading, source: Folder, kind: str
) -> Preprocessing:
    """How examples are read, before it is known how they are standardised."""
    names, first = _names(looks), _first(looks)
    for name in names:
        _require_answer(name, values[name], reading, looks[name])
    columns: tuple[Column, ...] = ()
    if first.is_table:
        wheres = [f"client {quote(name)}" for name in names]
        columns = agree(first.form.features, [values[name].texts for name in names], wheres)
    classes = sort_classes({each for name in names for each in values[name].classes})
    if reading.kind == "classification":
        require_several(classes)
        if kind == "auto":
            require_classes(classes, reading.examples)
    grey = all(look.is_grey for look in looks.values())
    shape = (*first.form.shape[:-1], 1) if grey else first.form.shape
    return Preprocessing(
        first.form.type,
        network_shape((len(feature_names(columns)),) if columns else shape),
        classes if reading.kind == "classification" else (),
        features=feature_names(columns),
        columns=columns if reading.texts else (),
        ignored=source.ignored if first.is_table else (),
        resize=None if first.is_table else source.resize,
        kind=reading.kind,
        targets=() if reading.kind == "classification" else _targets(source, first),
    )


def _names(looks: Looks) -> list[ClientId]:
    """In the order of the clients' files in one folder, the first of which sets the columns'."""
    return sorted(looks, key=lambda name: f"{name}.csv")


def _first(looks: Looks) -> Look:
    return looks[_names(looks)[0]]


def _decide_kind(
    facts: Mapping[ClientId, TargetFacts], targets: tuple[str, ...], kind: str
) -> Kind:
    if kind != "auto":  # what is asked for must hold of every client by itself
        for name, each in facts.items():
            try:
                decide_kind([each], targets, kind)
            except DataError as error:
                raise DataError(f"client {quote(name)}: {error}") from None
    return decide_kind(list(facts.values()), targets, kind)


def _targets(source: Folder, look: Look) -> tuple[str, ...]:
    if look.is_table:
        return columns_of(source.label)
    count = look.form.targets
    return ("y",) if count == 1 else tuple(f"y{index}" for index in range(count))


def _require_same_times(looks: Looks, column: str) -> None:
    names = _names(looks)
    common = set(looks[names[0]].times)
    for name in names:
        if not common & {*looks[name].times}:
            raise DataError(
                f"client {quote(name)}: column {quote(column)} must be numbers alone or dates "
                f"alone as that of client {quote(names[0])}, which are {' or '.join(common)}, got "
                f"{' or '.join(looks[name].times) or 'neither'}"
            )
        common &= {*looks[name].times}


def _require_answer(name: ClientId, values: Values, reading: Reading, look: Look) -> None:
    """Refuse a client that has not told what it was asked for, or whose targets are no classes."""
    if values.num_withheld:
        raise DataError(
            f"client {quote(name)}: targets that are numbers may be classes or values, got "
            f"{values.num_withheld} different ones: {HOW_TO_SAY}"
        )
    is_told = {*values.texts} == {*reading.texts} and all(
        values.texts[column].first is not None for column in look.texts
    )
    if not is_told or bool(values.classes) != (reading.kind == "classification"):
        raise DataError(
            f"client {quote(name)}: it must tell its categories and classes, got others"
        )


# --- sums -----------------------------------------------------------------------------------------


def moments_shape(read: Preprocessing) -> tuple[int, ...]:
    """Of the moments of inputs: by channel of images, by feature of rows."""
    if read.dtype == np.dtype(np.uint8).name:
        return read.input_shape[:1]
    shape = read.input_shape
    # As the examples have it, which keep their channels last.
    return (*shape[1:], shape[0]) if len(shape) == 3 else shape
