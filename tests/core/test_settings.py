from dataclasses import dataclass
from typing import Literal

import pytest

from concordfl import SettingError
from concordfl.algorithms import ALGORITHMS
from concordfl.core.settings import (
    Count,
    NonNegative,
    Positive,
    Settings,
    Share,
    check_keys,
    received,
    to_toml,
)
from concordfl.engine.plan import Plan


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
        ({"maybe": 10**30}, f"maybe must be <= 1,000,000,000, got {10**30}"),
        ({"mu": 10**400}, "mu must be a number, got 1" + "0" * 199 + "..."),
        ({"maybe": 1 << 40_000}, "maybe must be <= 1,000,000,000, got int with a number of too"),
        ({"kind": "x" * 10**6}, "kind must be one of 'a' or 'b', got '" + "x" * 199 + "..."),
    ],
)
def test_a_bad_value_is_answered_with_the_rule_and_the_value(values, message):
    with pytest.raises(SettingError) as error:
        Sample(**values)
    assert str(error.value).startswith(message)
    with pytest.raises(SettingError) as error:
        Sample.from_table(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in values.items()
            },
            "sec",
        )
    assert str(error.value).startswith(f"sec.{message}")
    assert len(str(error.value)) < 300


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


def test_values_in_messages_are_short():
    nested = []
    for _ in range(5000):
        nested = [nested]
    assert received(nested) == "list of too many levels"
    assert received([1 << 40_000]) == "list with a number of too many digits"
    assert len(received("x" * 10**6)) == 203


@pytest.mark.parametrize(
    ("name", "key", "bound"),
    [
        ("fedem", "num_models", 1000),
        ("fedconcat", "clusters", 1000),
        ("fedconcat", "head_steps", 10**6),
        ("fedconcat", "random_inputs", 10**6),
        ("fedgmm", "num_gaussians", 1000),
        ("fedvc", "num_concepts", 1000),
        ("pfedme", "inner_steps", 10**6),
    ],
)
def test_work_without_an_end_is_refused(name, key, bound):
    kind = ALGORITHMS[name]
    assert getattr(kind(**{key: bound}), key) == bound
    with pytest.raises(SettingError, match=rf"{key} must be .*<= {bound:,}.*, got {bound + 1}"):
        kind(**{key: bound + 1})


def test_rounds_and_seeds_are_bounded():
    for key, bound in (("rounds", 10**6), ("workers", 1000), ("tune_new", 10**6)):
        with pytest.raises(SettingError, match=f"{key} must be <= {bound:,}, got {10**30}"):
            Plan(**{key: 10**30})
    with pytest.raises(SettingError, match="seed must be < 9,223,372,036,854,775,808, got"):
        Plan(seed=1 << 40_000)
