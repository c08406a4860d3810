"""Clients with folders of their own: they agree how examples are read, and the run has the bits of
the simulation over a folder of all clients' files.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from concordfl import ClientStepError, DataError, SettingError, tree
from concordfl.deploy import newcomer, predictions
from concordfl.engine.files import to_json
from concordfl.engine.records import RunFolder

pytest.importorskip("flwr", reason="Flower is not installed: pip install concordfl[flower]")

from concordfl.engine.flower.parcel import Answer, Request
from fake_grid import FakeGrid
from own_folders import federate, grid_of, own_folders, simulate

NAMES = ("a", "a-b", "north", "south")  # the file a-b.csv comes before a.csv


def table(rows, **columns):
    """Lines of a .csv file; a column is a function of the row's number."""
    cells = [[str(make(row)) for make in columns.values()] for row in range(rows)]
    return "\n".join(",".join(line) for line in [list(columns), *cells]) + "\n"


def write_tables(folder, target=None, **more):
    """Four hospitals with numbers, missing values, and text: one has a category, one a class, and
    one a kind of text that the others have not; columns are not in one order.
    """
    folder.mkdir()
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        rows, ward = 30 + 7 * number, ["x", "y"] + ["z"] * (name == "a")
        grades = ["0", "1", "2"] if name != "south" else ["1", "2", "high"]
        columns = {
            "age": lambda row, rng=rng: "" if row % 9 == 4 else f"{rng.normal(50, 9):.2f}",
            "ward": lambda row, rng=rng, ward=ward: "?" if row % 8 == 7 else rng.choice(ward),
            "grade": lambda row, rng=rng, grades=grades: rng.choice(grades),
            "dose": lambda row, rng=rng, number=number: f"{rng.gamma(2.0) * (number + 1):.3f}",
            "y": lambda row, n=number: ("sick", "well", "dead")[row % (3 if n == 2 else 2)],
        }
        if target is not None:
            columns["y"] = lambda row, rng=rng: target(rng)
        extra = {key: lambda row, rng=rng, make=make: make(rng, row) for key, make in more.items()}
        columns = {**columns, **extra}
        if name == "north":
            columns = dict(reversed(columns.items()))
        (folder / f"{name}.csv").write_text(table(rows, **columns))
    return folder


def settings(method="fedavg", data=None, **sections):
    name = {"name": method} if isinstance(method, str) else method
    return {
        "run": {"rounds": 3, "evaluate_every": 1, "checkpoint_seconds": 0},
        "data": {"folder": "clients", **(data or {})},
        "training": {"lr": 0.1, "batch_size": 16},
        "algorithm": name,
        **sections,
    }


def assert_same(tmp_path, clients, run, **config):
    """The federation's run is the simulation's; its grid and its summary."""
    simulated = simulate(clients, run)
    folders = own_folders(clients, tmp_path / "own")
    grid = grid_of(folders, tmp_path / "states", **config)
    summary = federate(grid, tmp_path / "out", run)
    for name in ("parameters_sha256", "states_sha256", "preprocessing", "task", "missing"):
        assert summary[name] == simulated.summary[name], name
    with RunFolder.open(tmp_path / "out") as folder:
        records = folder.read_records()
    for ours, theirs in zip(records, simulated.records, strict=True):
        assert to_json({**ours, "seconds": 0, "format": 1}) == to_json(
            {**theirs, "seconds": 0, "format": 1}
        )
    return grid, summary


@pytest.mark.parametrize(
    "method",
    ["fedavg", "apfl", {"name": "fedconceptem", "num_models": 2}],
    ids=["fedavg", "apfl", "fedconceptem"],
)
def test_tables_give_the_bits_of_the_simulation(tmp_path, method):
    _, summary = assert_same(tmp_path, write_tables(tmp_path / "clients"), settings(method))
    read = summary["preprocessing"]
    assert read["classes"] == ["dead", "sick", "well"]
    assert {"name": "ward", "categories": ["x", "y", "z"]} in read["columns"]
    assert {"name": "grade", "categories": ["0", "1", "2", "high"]} in read["columns"]
    assert read["standardised"]["mean"][:1] != [0.0]


def test_noise_comes_from_a_secret_of_the_client(tmp_path):
    method = {"name": "fedconceptem", "num_models": 2, "noise": 2.0}
    clients, run = write_tables(tmp_path / "clients"), settings(method)
    seeded = {**run, "run": {**run["run"], "noise_seed": 5}}
    grid, summary = assert_same(tmp_path, clients, seeded)
    assert not list((tmp_path / "states").glob("*/*/secret"))
    folders = {name: tmp_path / "own" / name for name in NAMES}
    grid = grid_of(folders, tmp_path / "private")
    other = federate(grid, tmp_path / "secret", run)
    assert other["parameters_sha256"] != summary["parameters_sha256"]
    secrets = [path.read_bytes() for path in (tmp_path / "private").glob("*/*/secret")]
    assert len(set(secrets)) == len(NAMES)
    assert not any(secret in message for secret in secrets for message in grid.seen)


@pytest.mark.parametrize(
    ("target", "sections"),
    [
        (lambda rng: f"{rng.normal(100, 20):.2f}", {}),
        (lambda rng: rng.integers(1000), {"objective": {"kind": "regression"}}),
        (lambda rng: rng.integers(5), {}),
        (lambda rng: rng.choice([0.5, 1.5]), {"objective": {"kind": "classification"}}),
    ],
    ids=["numbers", "whole numbers", "few whole numbers", "numbers as classes"],
)
def test_the_kind_of_targets_is_decided_over_all_clients(tmp_path, target, sections):
    clients = write_tables(tmp_path / "clients", target)
    grid, summary = assert_same(tmp_path, clients, settings(**sections))
    if summary["task"]["objective"] == "regression":
        # No value of a number is told: not one of those that targets take.
        told = [answer.told for answer in messages(grid, Answer) if answer.told is not None]
        assert all(each.get("classes", []) == [] for each in told)
        rows = (clients / "a.csv").read_text().splitlines()[1:]
        own = {line.split(",")[4] for line in rows}
        looks = [answer.card.look for answer in messages(grid, Answer) if answer.card]
        assert not any(f'"{value}"' in json.dumps([told_of(grid), looks]) for value in own)


def told_of(grid):
    return [
        {name: part for name, part in answer.told.items() if name not in ("x", "y")}
        for answer in messages(grid, Answer)
        if answer.told is not None
    ]


def messages(grid, kind):
    found = [tree.unpack(data) for data in grid.seen]
    return [message for message in found if isinstance(message, kind)]


def test_several_labels_times_splits_and_groups(tmp_path):
    clients = write_tables(
        tmp_path / "clients",
        lambda rng: rng.integers(2),
        y2=lambda rng, row: rng.integers(2),
        day=lambda rng, row: f"2026-01-{28 - row % 28:02d}",
        kept=lambda rng, row: "unused",
    )
    run = settings(data={"label": ["y", "y2"], "time": "day", "drop": ["kept"]})
    _, summary = assert_same(tmp_path, clients, run)
    assert summary["task"]["objective"] == "multi-label"
    other = write_tables(
        tmp_path / "other",
        use=lambda rng, row: ["train", "test", "train"][row % 3],
        region=lambda rng, row: "west",
    )
    run = settings(data={"split": "use", "group": "region"})
    (tmp_path / "second").mkdir()
    assert_same(tmp_path / "second", other, run)


@pytest.mark.parametrize("kind", ["rows", "grey", "colours"])
def test_arrays_give_the_bits_of_the_simulation(tmp_path, kind):
    clients = tmp_path / "clients"
    clients.mkdir()
    for number, name in enumerate("pqr"):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(25, 4)) + number
        if kind == "rows":
            x[number, 2] = np.nan
        else:
            x = rng.integers(256, size=(25, 8, 8, 3), dtype=np.uint8)
            # One client in colours is enough for all.
            x[...] = x if kind == "colours" and name == "q" else x[..., :1]
        np.savez(clients / f"{name}.npz", x=x, y=rng.integers(2 + (name == "r"), size=25))
    run = settings(model={"name": "mlp"})
    _, summary = assert_same(tmp_path, clients, run)
    shapes = {"rows": [4], "grey": [1, 8, 8], "colours": [3, 8, 8]}
    assert summary["task"]["input_shape"] == shapes[kind]
    assert summary["preprocessing"]["classes"] == ["0", "1", "2"]


def test_folders_of_images_give_the_bits_of_the_simulation(tmp_path):
    clients = tmp_path / "clients"
    for number, name in enumerate(("one", "two")):
        rng = np.random.default_rng(number)
        for label in ("cat", "dog", "owl")[: 2 + number]:
            (clients / name / label).mkdir(parents=True)
            for image in range(8):
                pixels = rng.integers(256, size=(9 + image, 7, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(clients / name / label / f"{image}.png")
    run = settings(data={"resize": [6, 5]}, model={"name": "mlp"})
    _, summary = assert_same(tmp_path, clients, run)
    assert summary["preprocessing"]["resize"] == [6, 5]
    assert summary["preprocessing"]["classes"] == ["cat", "dog", "owl"]


def test_no_row_of_the_data_is_in_a_message(tmp_path):
    """With everything shared; APFL's personal parts and examples stay where they are."""
    clients = write_tables(tmp_path / "clients")
    grid, summary = assert_same(tmp_path, clients, settings("apfl"))
    standard = summary["preprocessing"]["standardised"]
    rows = [
        np.array(row, dtype=kind).tobytes()
        for name in NAMES
        for row in examples(clients / f"{name}.csv", summary["preprocessing"])
        for row in (row, (row - standard["mean"]) / standard["deviation"])
        for kind in (np.float32, np.float64)
    ]
    lines = [
        line.encode()
        for name in NAMES
        for line in (clients / f"{name}.csv").read_text().splitlines()[1:]
    ]
    everything = b"".join(grid.seen)
    assert len(rows) > 500
    for private in (*rows, *lines):
        assert private not in everything
    # Nor a single number.
    told = {str(leaf) for data in grid.seen for leaf in tree.leaves(tree.unpack(data))}
    numbers = {cell for line in lines for cell in line.decode().split(",") if "." in cell}
    assert len(numbers) > 100
    assert not told & {name for cell in numbers for name in (cell, str(float(cell)))}
    # Nor how often a category occurs.
    is_category = ["=" in name for name in summary["preprocessing"]["features"]]
    sums = [told["x"] for told in tables_of_sums(grid)]
    assert len(sums) == len(NAMES)
    for each in sums:
        for name in ("total", "squares"):
            assert ((each[name] == 0) == torch.tensor(is_category)).all()
    # What is told would be found: the sums of what a client has.
    (first, *_) = [answer.told for answer in messages(grid, Answer) if answer.told]
    assert any(answer.told and "x" in answer.told for answer in messages(grid, Answer))
    assert first["classes"][0].encode() in everything


def tables_of_sums(grid):
    told = [answer.told for answer in messages(grid, Answer)]
    return [each for each in told if each is not None and "x" in each]


def examples(path, read):
    """The numbers of a table as a run with these columns has them, read by numpy alone."""
    header, *lines = (line.split(",") for line in path.read_text().splitlines())
    for line in lines:
        cells = dict(zip(header, line, strict=True))
        row = []
        for column in read["columns"]:
            cell = cells[column["name"]]
            if "categories" in column:
                row += [float(cell == each) for each in column["categories"]]
            else:
                row.append(float(cell) if cell else np.nan)
        if not np.isnan(row).any():
            yield np.array(row)


def test_labels_are_told_only_if_they_may(tmp_path):
    clients = write_tables(tmp_path / "clients")
    folders = own_folders(clients, tmp_path / "own")
    run = settings(objective={"class_weights": "balanced"})
    with pytest.raises(SettingError, match="needs clients that share labels, got client 'a'"):
        federate(grid_of(folders, tmp_path / "states", share="size"), tmp_path / "out", run)
    summary = federate(grid_of(folders, tmp_path / "states"), tmp_path / "out", run)
    assert summary["parameters_sha256"] == simulate(clients, run).summary["parameters_sha256"]
    facts = json.loads((tmp_path / "out/federation.json").read_text())
    for client in facts["clients"]:
        assert sum(client["labels"]) == client["train"]
    assert not (tmp_path / "out/refused.json").exists()


# --- whoever does not fit -------------------------------------------------------------------------


def refuse(tmp_path, change, run=None, error=DataError, **write):
    """The server's error where `change` has changed the clients' folders."""
    folders = own_folders(write_tables(tmp_path / "clients", **write), tmp_path / "own")
    change(folders)
    grid = grid_of(folders, tmp_path / "states")
    with pytest.raises(error) as caught:
        federate(grid, tmp_path / "out", run or settings())
    message = str(caught.value)
    assert "\n" not in message
    recorded = json.loads((tmp_path / "out/refused.json").read_text())
    assert recorded["why"] == message
    assert not (tmp_path / "out/federation.json").exists()
    return message


def edit(name, change):
    def edited(folders):
        path = folders[name] / "data.csv"
        path.write_text(change(path.read_text()))

    return edited


def test_a_client_with_other_columns_is_refused(tmp_path, caplog):
    message = refuse(tmp_path, edit("north", lambda text: text.replace("dose", "amount")))
    assert message == "client 'north': columns must be those of client 'a-b', got none called dose"
    assert caplog.text.count(message) == 4  # in every client's log


def test_text_among_many_numbers_is_refused(tmp_path):
    change = edit("a", lambda text: re.sub(r"\n(\d+\.)", r"\nabout \1", text, count=1))
    message = refuse(tmp_path, change)
    rule = "column 'age' must be a number or missing, got '...' beside"
    assert message.startswith("client 'a', line 2: ")
    assert rule in message


def test_text_that_tells_rows_apart_is_refused(tmp_path):
    more = {"who": lambda rng, row: f"p{rng.integers(10**9)}"}
    message = refuse(tmp_path, lambda folders: None, **more)
    assert "column 'who' must be numbers, or text of at most 100 categories" in message
    assert 'drop = ["who"] in [data] leaves it out' in message


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (
            edit("south", lambda text: text.replace(",y\n", ",outcome\n", 1)),
            "client 'south': the data must have a column called 'y', got age, ward, grade, dose, "
            "outcome",
        ),
        (
            lambda folders: shutil.copy(folders["a"] / "data.csv", folders["a"] / "more.csv"),
            "client 'a': the data folder must hold one .csv file, one .npz file or class folders "
            "of images, got data.csv, more.csv",
        ),
        (
            lambda folders: (folders["a"] / "data.csv").unlink(),
            "client 'a': the data folder must hold .* of images, got nothing of these",
        ),
        (lambda folders: shutil.rmtree(folders["a"]), "client 'a': .* got no folder"),
        (
            edit("a", lambda text: text.splitlines()[0] + "\n"),
            "client 'a': client 'a' must have at least one example, got none",
        ),
        # What may hold data is told by its kind alone.
        (edit("a", lambda text: text + "1,2\n"), "one takes no part: DataError: the client's log"),
    ],
    ids=["no label", "two files", "no file", "no folder", "no rows", "a damaged file"],
)
def test_a_folder_that_cannot_be_read_is_refused(tmp_path, change, rule):
    message = refuse(tmp_path, change, error=SettingError)
    assert message.startswith("4 clients must be there within 5 s, got 3")
    assert re.search(rule, message)
    assert str(tmp_path) not in message


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (lambda rng: rng.integers(1000), "may be classes or values, got .* different ones: say "),
        (lambda rng: "same", "labels must take at least two values, got same"),
    ],
)
def test_targets_that_nobody_can_agree_on(tmp_path, target, rule):
    assert re.search(rule, refuse(tmp_path, lambda folders: None, target=target))


def test_targets_must_be_numbers_at_every_client(tmp_path):
    run = settings(objective={"kind": "regression"})
    message = refuse(tmp_path, lambda folders: None, run)
    assert message == "client 'a-b': targets must be numbers, got 'sick'"


def test_a_feature_without_a_value_anywhere(tmp_path):
    message = refuse(tmp_path, lambda folders: None, empty=lambda rng, row: "")
    assert message.endswith("somebody's training examples, got none for feature 'empty'")


def test_tables_and_arrays_do_not_fit(tmp_path):
    def change(folders):
        (folders["south"] / "data.csv").unlink()
        np.savez(folders["south"] / "data.npz", x=np.ones((9, 4)), y=np.arange(9) % 2)

    assert refuse(tmp_path, change) == (
        "client 'south': the data must be a table as those of client 'a-b', got arrays or images"
    )


def test_a_client_with_simulated_data_does_not_fit(tmp_path):
    clients = write_tables(tmp_path / "clients")
    folders = own_folders(clients, tmp_path / "own")
    grid = grid_of(folders, tmp_path / "states")
    grid.node_configs[11]["data"] = "simulated"
    run = settings(data={"folder": str(clients)})
    with pytest.raises(SettingError, match="one has, got client 'a-b' with simulated data"):
        federate(grid, tmp_path / "out", run)


@pytest.mark.parametrize(
    ("run", "rule"),
    [
        ({"data": {"name": "digits"}}, "data must be given as folder = .*, got 'digits'"),
        ({"data": {"table": "all.csv"}}, "data must be given as folder = .*, got 'table'"),
        ({"data": {"folder": "x", "limit": 5}}, "data.limit must be left out .*, got 5"),
        ({"data": {"folder": "x", "without": [1]}}, "data.without must be left out"),
        ({"scenario": {"hold_out": 0.5}}, "scenario.hold_out must be left out .*, got 0.5"),
        ({"scenario": {"clients": 2, "partition": {"kind": "iid"}}}, "where they are .* got Iid"),
        (
            {"scenario": {"shifts": [{"kind": "label-map", "map": "reverse", "share": 0.5}]}},
            "scenario must leave clients' examples as and where they are .*, got LabelMap",
        ),
        ({"scenario": {"clients": 3}}, "scenario.clients must be left out or 4, .*, got 3"),
    ],
)
def test_what_needs_all_examples_in_one_place_is_refused(tmp_path, run, rule):
    message = refuse(tmp_path, lambda folders: None, {**settings(), **run}, error=SettingError)
    assert re.search(rule, message)


# --- later ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The server is gone."""


def begin_and_kill(tmp_path, clients, run):
    folders = own_folders(clients, tmp_path / "own")
    grid = grid_of(folders, tmp_path / "states")

    def kill():
        asked = [message for message in messages(grid, Request) if message.order is not None]
        if len(asked) >= 10:
            raise Killed

    grid.before = kill
    with pytest.raises(Killed):
        federate(grid, tmp_path / "out", run)
    return folders


def test_a_resumed_server_reads_with_what_was_agreed(tmp_path):
    clients, run = write_tables(tmp_path / "clients"), settings("apfl")
    folders = begin_and_kill(tmp_path, clients, run)
    grid = grid_of(folders, tmp_path / "states")
    summary = federate(grid, tmp_path / "out", run)
    simulated = simulate(clients, run).summary
    for name in ("parameters_sha256", "states_sha256", "preprocessing"):
        assert summary[name] == simulated[name]
    assert not any(request.question for request in messages(grid, Request))
    facts = json.loads((tmp_path / "out/federation.json").read_text())
    assert facts["preprocessing"] == simulated["preprocessing"]
    orders = [request for request in messages(grid, Request) if request.order is not None]
    assert all(request.agreed == simulated["preprocessing"] for request in orders)


def test_data_that_changed_after_the_run_began_are_refused(tmp_path, caplog):
    clients, run = write_tables(tmp_path / "clients"), settings()
    folders = begin_and_kill(tmp_path, clients, run)
    path = folders["north"] / "data.csv"
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, *rest, first]))  # the same values: only rows know
    with pytest.raises(ClientStepError, match="'north'.* must go on with the data that it began"):
        federate(grid_of(folders, tmp_path / "states"), tmp_path / "out", run)
    assert "refused: the run must go on with the data that it began with" in caplog.text


def test_who_comes_back_with_another_file_is_not_the_same(tmp_path):
    clients, run = write_tables(tmp_path / "clients"), settings()
    folders = begin_and_kill(tmp_path, clients, run)
    edit("north", lambda text: text + text.splitlines()[1] + "\n")(folders)
    summary = federate(grid_of(folders, tmp_path / "states"), tmp_path / "out", run, timeout=20.0)
    assert summary["missing"]["timed out"] >= 1


def test_who_comes_after_the_run_is_read_as_agreed(tmp_path):
    """A category that nobody had in training is unknown."""
    folders = own_folders(write_tables(tmp_path / "clients"), tmp_path / "own")
    late = {"a": folders.pop("a")}
    federate(grid_of(folders, tmp_path / "states"), tmp_path / "out", settings())
    grid = grid_of(late, tmp_path / "states")
    summary = federate(grid, tmp_path / "out", settings())
    assert not any(request.question for request in messages(grid, Request))
    (result,) = (tmp_path / "states/a").glob("*/result")
    assert (
        json.loads((result / "summary.json").read_text())["preprocessing"]
        == (summary["preprocessing"])
    )
    newcomer.adapt(result, late["a"] / "data.csv", client="a")
    found = predictions.predict(result, late["a"] / "data.csv")
    assert found.client == "a"


def test_a_file_that_changes_while_clients_agree_is_that_clients_fault(tmp_path):
    folders = own_folders(write_tables(tmp_path / "clients"), tmp_path / "own")
    grid = grid_of(folders, tmp_path / "states")

    def remove_file():
        if len(messages(grid, Answer)) == 4:  # all have introduced themselves
            (folders["north"] / "data.csv").unlink(missing_ok=True)

    grid.before = remove_file
    with pytest.raises(DataError, match="'north' must answer, got client 'north': .* of these"):
        federate(grid, tmp_path / "out", settings())


def test_a_client_that_does_not_answer_is_named(tmp_path):
    folders = own_folders(write_tables(tmp_path / "clients"), tmp_path / "own")
    grid = grid_of(folders, tmp_path / "states")

    class Silent(FakeGrid):
        def pull_messages(self, ids):
            answers = {id: Answer.from_bytes(self.seen[2 * self._number(id) - 1]) for id in ids}
            return super().pull_messages([id for id in ids if answers[id].card is not None])

        def _number(self, id):
            return int(id.removeprefix("message-"))

    with pytest.raises(SettingError, match="client 'a' must answer within 9 s while clients agree"):
        federate(Silent(grid.node_configs), tmp_path / "out", settings(), timeout=9.0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda told: {}, "client 'a': it must tell its categories and classes, got others"),
        (lambda told: {"classes": [7]}, "client 'a': a description must have the types"),
        (lambda told: {**told, "x": None}, "client 'a': (a desc|sums must be finite numbers)"),
        (
            lambda told: (
                {**told, "x": {**told["x"], "total": told["x"]["total"] * torch.nan}}
                if "x" in told
                else told
            ),
            "client 'a': sums must be finite numbers of shape",
        ),
        (
            lambda told: {**told, "labels": [-1]} if "x" in told else told,
            "client 'a': labels must be counts",
        ),
    ],
)
def test_a_client_may_tell_anything(tmp_path, monkeypatch, change, rule):
    from concordfl.engine.flower.own_folder import OwnFolder

    def tell(self, question, agreed, honest=OwnFolder.tell):
        told = honest(self, question, agreed)
        return change(told) if self.name == "a" and question != "refused" else told

    monkeypatch.setattr(OwnFolder, "tell", tell)
    folders = own_folders(write_tables(tmp_path / "clients"), tmp_path / "own")
    with pytest.raises(DataError, match=rule):
        federate(grid_of(folders, tmp_path / "states"), tmp_path / "out", settings())
