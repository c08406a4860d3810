"""Settings: frozen dataclasses that refuse a bad value however they are built.

    @dataclass(frozen=True)
    class FedProx(FedAvg):
        mu: NonNegative = 0.01

`FedProx(mu=-1.0)` raises `SettingError: mu must be >= 0, got -1.0`, and so does `mu = -1.0` in a
run file.
"""

import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan, TypeAdapter, ValidationError

from .errors import SettingError

Finite = Annotated[float, AllowInfNan(False)]
Positive = Annotated[Finite, Gt(0)]
NonNegative = Annotated[Finite, Ge(0)]
Probability = Annotated[float, Ge(0), Le(1)]
Share = Annotated[float, Gt(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]

# Every count has an upper bound: a run that could never end is refused, not begun.
MAX_COUNT = 10**9
MAX_REPEATS = 10**6
MAX_MODELS = 1000
MAX_WIDTH = 100_000
MAX_WORKERS = 1000
Count = Annotated[int, Ge(1), Le(MAX_COUNT)]
CountOrZero = Annotated[int, Ge(0), Le(MAX_COUNT)]
ByteCount = Annotated[int, Ge(0)]  # what was sent or written: no setting, so without a bound
# rounds, epochs, steps: how often something is done
Repeats = Annotated[int, Ge(1), Le(MAX_REPEATS)]
RepeatsOrZero = Annotated[int, Ge(0), Le(MAX_REPEATS)]
# random inputs, candidates: how many are drawn and held at once
Draws = Annotated[int, Ge(1), Le(MAX_REPEATS)]
# models, clusters, Gaussians, concepts, copies: each is as large as a network or a client
ModelCount = Annotated[int, Ge(1), Le(MAX_MODELS)]
Seed = Annotated[int, Ge(-(2**63)), Lt(2**63)]  # the whole numbers of TOML
WorkerCount = Annotated[int, Ge(1), Le(MAX_WORKERS)]
Width = Annotated[int, Ge(1), Le(MAX_WIDTH)]  # units of a layer, dimensions of an embedding

MAX_VALUE_LENGTH = 200  # characters of a refused value that a message repeats

# What pydantic finds wrong, in the words of our messages: `mu must be >= 0, got -1.0`.
RULES = {
    "greater_than": "> {gt}",
    "greater_than_equal": ">= {ge}",
    "less_than": "< {lt}",
    "less_than_equal": "<= {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "literal_error": "one of {expected}",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "none_required": "left out",
    "tuple_type": "a list",
    "dict_type": "a table",
}


def as_tuples(value: Any) -> Any:
    """Lists as tuples, also inside lists."""
    return tuple(as_tuples(one) for one in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Settings:
    """Base of algorithms, partitions, shifts and the sections of a run file."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, adapter in _adapters(kind).items():
            object.__setattr__(self, name, check_value(name, adapter, getattr(self, name)))

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "") -> Self:
        """Built from a TOML table; a key that is not a field is refused with the nearest one that
        is.
        """
        if not isinstance(table, Mapping):
            raise SettingError(f"[{where}] must be a table, got {received(table)}")
        check_keys(table, [field.name for field in fields(cls)], where)
        values = {key: as_tuples(value) for key, value in table.items()}
        try:
            return cls(**values)
        except TypeError as error:  # a required field was left out
            raise SettingError(f"{where or cls.__name__}: {error}") from None
        except SettingError as error:
            raise SettingError(f"{where}.{error}" if where else str(error)) from None

    def to_table(self) -> dict[str, Any]:
        """The TOML table that `from_table` reads back; None is left out, as TOML has none."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: to_toml(value) for name, value in values.items() if value is not None}


def check_value(name: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    """`value` as its type has it; one that breaks the type's rule is refused."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        raise SettingError(_explain(name, error, value)) from None
    except (OverflowError, RecursionError):
        raise SettingError(f"{name} must be within bounds, got {received(value)}") from None


def received(value: Any) -> str:
    """A refused value as a message shows it: short, however long, deep or large it is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return f"{type(value).__name__} with a number of too many digits"
    except RecursionError:
        return f"{type(value).__name__} of too many levels"
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."


def to_toml(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.to_table()
    if isinstance(value, Mapping):
        return {key: to_toml(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [to_toml(item) for item in value]
    return value


def check_keys(table: Mapping[str, Any], known: Iterable[str], where: str = "") -> None:
    """Refuse a key that is not among `known`, with the nearest known one."""
    known = list(known)
    for key in table:
        if key not in known:
            full = f"{where}.{key}" if where else key
            raise SettingError(f"unknown key {received(full)}{nearest(str(key), known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message that helps with a misspelt name."""
    known = sorted(known)
    close = difflib.get_close_matches(name[:MAX_VALUE_LENGTH], known, n=1, cutoff=0.5)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": known are {', '.join(known)}" if known else ": it takes none"


@functools.cache
def _adapters(cls: Any) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(cls)}


def _explain(name: str, error: ValidationError, value: Any) -> str:
    """`name must be <rule>, got <value>`: the rule of the first thing that is wrong."""
    problems = error.errors(include_url=False)
    path = ".".join([name, *(str(part) for part in problems[0]["loc"] if isinstance(part, int))])
    rules = dict.fromkeys(_rule(problem) for problem in problems)
    refused = problems[0]["input"] if len(problems) == 1 else value
    return f"{path} must be {' or '.join(rules)}, got {received(refused)}"


def _rule(problem: Any) -> str:
    rule = RULES.get(problem["type"])
    if rule is None:
        return str(problem["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    return rule.format(**{key: _bound(value) for key, value in problem.get("ctx", {}).items()})


def _bound(value: Any) -> str:
    """A bound as people write it: 1,000,000 or 0.5."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
