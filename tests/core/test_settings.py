from dataclasses import dataclass
from typing import Literal

import pytest

from concordfl import SettingError
from concordfl.core.settings import (
    Count,
    NonNegative,
    Positive,
    Settings,
    Share,
    check_keys,
    to_toml,
)


@dataclass(frozen=True)
class Sample(Settings):
    mu: NonNegative = 0.01
    rate: Positive = 1.0
    cohort: Count | Share = 1.0
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    flag: bool = False
    maybe: Count | None = None


@dataclass(frozen=True)
class Needy(Settings):
    must: int


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mu": -1.0}, "mu must be >= 0, got -1.0"),
        ({"mu": "much"}, "mu must be a number, got 'much'"),
        ({"mu": float("nan")}, "mu must be a finite number, got nan"),
        ({"rate": 0}, "rate must be > 0, got 0"),
        ({"cohort": 0}, "cohort must be >= 1 or > 0, got 0"),
        ({"cohort": 1.5}, "cohort must be a whole number or <= 1, got 1.5"),
        ({"kind": "c"}, "kind must be one of 'a' or 'b', got 'c'"),
        ({"names": (1,)}, "names.0 must be a string, got 1"),
        ({"names": "x"}, "names must be a list, got 'x'"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"maybe": 0.5}, "maybe must be a whole number, got 0.5"),
    ],
)
def test_a_bad_value_is_answered_with_the_rule_and_the_value(values, message):
    with pytest.raises(SettingError) as error:
        Sample(**values)
    assert str(error.value) == message
    with pytest.raises(SettingError) as error:
        Sample.from_table(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in values.items()
            },
            "sec",
        )
    assert str(error.value) == f"sec.{message}"


def test_good_values_pass():
    assert Sample(cohort=3).cohort == 3
    assert Sample(cohort=0.5).cohort == 0.5
    assert Sample(mu=1).mu == 1.0


def test_tables_go_round():
    sample = Sample(names=("x", "y"), maybe=2)
    assert Sample.from_table(sample.to_table()) == sample
    assert "maybe" not in Sample().to_table()
    assert to_toml({"a": (1, None), "b": None, "c": Sample()})["c"]["mu"] == 0.01


def test_unknown_and_missing_keys():
    with pytest.raises(SettingError, match=r"unknown key 'sec.muu': did you mean 'mu'\?"):
        Sample.from_table({"muu": 1}, "sec")
    with pytest.raises(SettingError, match="known are kind"):
        check_keys({"zzzzzz": 1}, ["kind"])
    with pytest.raises(SettingError, match="it takes none"):
        check_keys({"x": 1}, [])
    with pytest.raises(SettingError, match="must"):
        Needy.from_table({}, "needy")
