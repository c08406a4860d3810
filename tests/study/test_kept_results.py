"""Results files: what is written is read back, and what was edited or damaged is noticed."""

import copy
import json
import os
import re
from pathlib import Path

import pytest

from concordfl import DataError
from concordfl.config import read_table
from concordfl.data.datasets import DATASETS
from concordfl.report import tables, verdict
from concordfl.study import kept_results
from concordfl.study.cells import ConfigHasher, apply_settings, cells

ROOT = Path(__file__).parents[2]
RUN_FILE = """
[run]
rounds = 4

[data]
name = "digits"

[algorithm]
name = "fedprox"
"""
TRAFFIC = {"down": 1000, "up": 900, "evaluation_down": 10, "evaluation_up": 0}
FIGURES = {
    "rounds": 4,
    "clients": 3,
    "parameters": 100,
    "final": {"round": 4, "local_accuracy": 0.5, "local_accuracy_std": 0.1, "local_loss": 1.5},
    "selected": None,
    "selected_on": "validation",
    "clusters": {"ari": 0.5, "nmi": 0.5},
    "server": None,
    "bytes": TRAFFIC,
    "missing": {},
    "seconds": {"total": 12.5, "set_up": 0.1},
    "history": [
        {"round": 4, "stage": "train", "local_accuracy": 0.5, "bytes": TRAFFIC, "seconds": 3.0}
    ],
    "parameters_sha256": "0" * 64,
    "states_sha256": "1" * 64,
    "executor": "serial",
    "versions": {"torch": "2"},
}


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(RUN_FILE)
    return file


def line(run_file, method="fedprox", seed=0, figures=FIGURES, **settings):
    """A line as `compare --keep` writes it; settings with _ for a point."""
    differing = {name.replace("_", ".", 1): value for name, value in settings.items()}
    table = apply_settings(read_table(run_file), differing)
    return {
        "format": 1,
        "method": method,
        "settings": differing,
        "seed": seed,
        "config_hash": ConfigHasher()(cells(table, [method], [seed])[method, seed]),
        "revision": "abc1234+",
        "date": "2026-11-16",
        "figures": copy.deepcopy(figures),
    }


def read(run_file):
    return kept_results.read(run_file, ConfigHasher())


def write(run_file, *lines):
    kept_results.results_file(run_file).write_text("".join(f"{json.dumps(one)}\n" for one in lines))


# --- writing and reading --------------------------------------------------------------------------


def test_what_is_kept_is_read_back(run_file):
    assert read(run_file).results == {}
    one, other = line(run_file), line(run_file, seed=1, algorithm_mu=2.0)
    measured = {**line(run_file, figures=["anything"]), "measure": "novelty"}
    for kept in (one, other, measured):
        kept_results.keep(run_file, kept)
    found = read(run_file)
    assert found.file == run_file.with_name("mine.results.jsonl")
    assert found.results == {kept["config_hash"]: kept for kept in (one, other)}
    assert found.measures == {("novelty", one["config_hash"]): measured}
    assert found.describe_ignored() is None


def test_lines_have_a_readable_order_and_replace_each_other(run_file):
    given = [
        line(run_file, algorithm_mu=10.0),
        line(run_file, seed=10),
        line(run_file, algorithm_mu=9.0),
        line(run_file, seed=9),
        line(run_file, method="fedavg", seed=3),
    ]
    for one in given:
        kept_results.keep(run_file, one)
    better = copy.deepcopy(given[2])
    better["figures"]["parameters"] = 7
    kept_results.keep(run_file, better)
    lines = [json.loads(text) for text in read(run_file).file.read_text().splitlines()]
    assert [(one["method"], one["settings"], one["seed"]) for one in lines] == [
        ("fedavg", {}, 3),
        ("fedprox", {}, 9),
        ("fedprox", {}, 10),
        ("fedprox", {"algorithm.mu": 9.0}, 0),
        ("fedprox", {"algorithm.mu": 10.0}, 0),
    ]
    assert lines[3]["figures"]["parameters"] == 7


def test_what_is_kept_of_a_run():
    summary = {
        **FIGURES,
        "algorithm": "fedprox",
        "groups": {"a": 1},
        "final": {**FIGURES["final"], "clients": {"a": 0.5}},
        "server": {"short": [1, 2], "long": list(range(1000))},
        "versions": {"torch": "2", "revision": "abc1234"},
    }
    record = {
        "round": 4,
        "stage": "train",
        "bytes": TRAFFIC,
        "local": {"accuracy": 0.5, "loss": 1.0},
        "seconds": 3.0,
    }
    expected = {**FIGURES, "algorithm": "fedprox", "server": {"short": [1, 2]}}
    assert kept_results.figures_of(summary, [record]) == expected


def test_warnings_groups_and_clients_are_kept(run_file):
    warning = {"kind": "one-group", "text": "all 3 clients are on one model of 3"}
    summary = {**FIGURES, "warnings": [warning], "group_sizes": [3]}
    clients = {
        "b": {"new": False, "accuracy": 1 / 3, "loss": 1.0},
        "caf\udce9": {"new": False, "accuracy": 1.0},
        "without test": {"new": False, "accuracy": None},
        "newcomer": {"new": True, "accuracy": 0.5},
    }
    figures = kept_results.figures_of(summary, [], clients)
    assert figures["client_scores"] == {"b": 0.33333, "caf\\udce9": 1.0}
    kept_results.keep(run_file, line(run_file, figures=figures))
    (kept,) = read(run_file).results.values()
    assert kept["figures"]["client_scores"] == figures["client_scores"]
    assert kept["figures"]["warnings"] == [warning]
    assert kept["figures"]["group_sizes"] == [3]


def test_figures_of_very_many_clients_are_not_kept(run_file, monkeypatch):
    monkeypatch.setattr(kept_results, "MAX_CLIENTS_KEPT", 2)
    for count in (2, 3):
        scores = {str(place): 0.5 for place in range(count)}
        kept_results.keep(run_file, line(run_file, figures={**FIGURES, "client_scores": scores}))
        (kept,) = read(run_file).results.values()
        assert ("client_scores" in kept["figures"]) == (count == 2)


@pytest.mark.parametrize(
    "more",
    [
        {"warnings": [{"kind": "void"}]},
        {"group_sizes": [0]},
        {"client_scores": {"a": "good"}},
        {"client_scores": {"a": float("inf")}},
    ],
)
def test_damaged_warnings_groups_and_clients_are_refused(run_file, more):
    write(run_file, line(run_file, figures={**FIGURES, **more}))
    with pytest.raises(DataError, match="line 1, must be a kept result"):
        read(run_file)


def test_what_cannot_be_read_back_is_not_written(run_file):
    wrong = line(run_file, figures={**FIGURES, "rounds": 0})
    with pytest.raises(
        DataError, match=r"figures.rounds must be greater than or equal to 1, got 0"
    ):
        kept_results.keep(run_file, wrong)
    assert not kept_results.results_file(run_file).exists()


@pytest.mark.parametrize(
    ("revisions", "days", "sentence"),
    [
        ([None], ["2026-11-16"], "kept: 1 of 5 cells (2026-11-16, revision unknown)"),
        (["b1", "a1+"], ["2026-11-17", "2026-11-16"],
         "kept: 2 of 5 cells (2026-11-16 to 2026-11-17, revisions a1+, b1)"),
        (["a1", "a1"], [None, None], "kept: 2 of 5 cells (date unknown, revision a1)"),
    ],
)  # fmt: skip
def test_kept_results_are_named_as_such(revisions, days, sentence):
    lines = [{"revision": r, "date": d} for r, d in zip(revisions, days, strict=True)]
    assert kept_results.describe_kept(lines, 5) == sentence
    assert kept_results.describe_kept([], 5) is None


# --- lines that do not belong ---------------------------------------------------------------------


def test_a_line_of_another_run_file_is_ignored_and_this_is_said(run_file):
    write(run_file, line(run_file), line(run_file, seed=1))
    run_file.write_text(RUN_FILE.replace("rounds = 4", "rounds = 5"))
    found = read(run_file)
    assert found.results == {}
    assert found.describe_ignored() == (
        f"{found.file}: lines 1, 2 ignored: the run file, the defaults or the data have changed "
        "since"
    )
    kept_results.keep(run_file, line(run_file))  # computed again, it replaces the old one
    assert list(read(run_file).ignored) == [2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": 7}, "have changed since"),
        ({"method": "fedavg"}, "have changed since"),
        ({"settings": {"algorithm.mu": 3.0}}, "have changed since"),
        ({"config_hash": "0" * 16}, "have changed since"),
        ({"method": "fedaverage"}, "algorithm.name must be a known name, got 'fedaverage'"),
        ({"settings": {"algorithm.nu": 3.0}}, "unknown key 'algorithm.nu'"),
        ({"settings": {"algorithm": 3}}, r"[algorithm] must be a table, got 3"),
        ({"settings": {"run.rounds.x": 3}}, "a setting must be a key in a table"),
        ({"settings": {"compare.ditto": 3}}, r"[compare.ditto] must be a table, got 3"),
        ({"settings": {"": 3}}, "unknown key ''"),
    ],
)
def test_a_result_is_not_accepted_under_another_configuration(run_file, change, reason):
    write(run_file, {**line(run_file), **change}, line(run_file, seed=1))
    found = read(run_file)
    assert [one["seed"] for one in found.results.values()] == [1]
    assert reason in found.describe_ignored()


# --- damaged lines --------------------------------------------------------------------------------


def changed(run_file, path, value):
    damaged = line(run_file)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    part = damaged
    for parent in parents:
        part = part[parent]
    if value is KeyError:
        del part[last]
    else:
        part[last] = value
    return damaged


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "its format must be at most 1, got 2: a newer concordfl wrote it"),
        ("format", "1", "its format must be 1, got '1'"),
        ("format", True, "its format must be 1, got True"),
        ("format", KeyError, "its format must be 1, got None"),
        ("method", 3, "method must be a valid string, got 3"),
        ("seed", "0", "seed must be a valid integer, got '0'"),
        ("settings", [], "settings must be a valid dictionary, got []"),
        ("config_hash", "../x", "config_hash must be"),
        ("revision", "\x1b[31m", "revision must be"),
        ("date", "yesterday", "date must be"),
        ("note", "hello", "note must be"),
        ("figures", KeyError, "figures must be there, got none"),
        ("figures", 5, "figures must be a valid dictionary, got 5"),
        ("figures.final", None, "figures.final must be a valid dictionary, got None"),
        ("figures.final.local_accuracy", "high", "figures.final.local_accuracy must be"),
        ("figures.final.local_accuracy", 1.5, "figures.final.local_accuracy must be"),
        ("figures.final.local_accuracy", float("nan"), "figures.final.local_accuracy must be"),
        ("figures.bytes", {}, "figures.bytes.down must be there, got none"),
        ("figures.bytes.down", 10**400, "figures.bytes.down must be"),
        ("figures.seconds.total", None, "figures.seconds.total must be a valid number, got None"),
        ("figures.seconds.total", float("inf"), "figures.seconds.total must be"),
        ("figures.clusters", {"ari": "x"}, "figures.clusters.ari must be"),
        ("figures.history", "none", "figures.history must be a valid list, got 'none'"),
        ("figures.history.0.round", None, "figures.history.0.round must be"),
        ("figures.parameters_sha256", "short", "figures.parameters_sha256 must"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_an_error_of_one_line(run_file, path, value, message):
    write(run_file, line(run_file, seed=1), changed(run_file, path, value))
    with pytest.raises(DataError) as caught:
        read(run_file)
    found = f"{run_file.with_name('mine.results.jsonl')}, line 2, must be a kept result: "
    assert str(caught.value).startswith(found + message)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"null", b"\n", b"\xff\xfe", b'{"format": 1', b"[" * 5000, b"\0", b"1e999"],
)
def test_what_is_no_json_is_an_error_of_one_line(run_file, content):
    kept_results.results_file(run_file).write_bytes(content + b"\n")
    with pytest.raises(
        DataError, match=r"mine.results.jsonl, line 1, must be a kept result: "
    ) as e:
        read(run_file)
    assert "\n" not in str(e.value)


def test_a_repeated_line_is_refused(run_file):
    write(run_file, line(run_file), line(run_file, seed=1), line(run_file))
    with pytest.raises(DataError, match=r"line 3, must be a kept result: it repeats line 1"):
        read(run_file)


def test_a_folder_in_the_place_of_the_file_is_refused(run_file):
    kept_results.results_file(run_file).mkdir()
    with pytest.raises(DataError, match="must be a file, got a folder"):
        read(run_file)


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices")
def test_what_could_be_read_for_ever_is_refused(run_file):
    file = kept_results.results_file(run_file)
    os.mkfifo(file)
    with pytest.raises(DataError, match="must be a file, got a named pipe"):
        read(run_file)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="must be a file, got a device"):
        read(run_file)


def leaves(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, str(key)))


@pytest.mark.parametrize("junk", [None, "x", -1, 1e300, [], {}, [[1]], True, 10**30])
def test_whatever_is_put_into_a_line_no_table_breaks(run_file, junk):
    for path in leaves(line(run_file)):
        if path:
            write(run_file, changed(run_file, ".".join(path), junk))
            try:
                kept = read(run_file)
            except DataError:
                continue
            runs = {"fedprox": [one["figures"] for one in kept.results.values()] * 2}
            if runs["fedprox"]:
                tables.comparison_table("title", runs)
                tables.for_whom_table(runs)
                verdict.warnings(runs)
                verdict.verdict({**runs, "local": runs["fedprox"]})
                tables.over_clients_table("title", runs)


# --- the kept results of this repository ----------------------------------------------------------

RESULTS = sorted((ROOT / "experiments").rglob("*.results.jsonl"))


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.name.split(".")[0])
def test_every_kept_result_belongs_to_its_run_file(file):
    """Whatever is added to the settings: LATER_SETTINGS keeps what was there before."""
    run_file = file.with_name(file.name.replace(".results.jsonl", ".toml"))
    if '"cifar10"' in run_file.read_text() + file.read_text():  # a part of it has a hash of its own
        try:
            DATASETS["cifar10"]().locate()
        except DataError as error:
            pytest.skip(f"the data are not here: {error}")
    kept = read(run_file)
    assert kept.ignored == {}
    assert len(kept.results) + len(kept.measures) == len(file.read_text().splitlines())


def test_no_result_is_kept_twice_or_elsewhere():
    lines = [json.loads(text) for file in RESULTS for text in file.read_text().splitlines()]
    names = [(one["config_hash"], one.get("measure")) for one in lines]
    assert len(names) == len(set(names)) >= 332
    others = [
        file
        for file in (ROOT / "experiments").rglob("*")
        if re.search(r"\.jsonl?$", file.name) and file not in RESULTS
    ]
    assert others == []
