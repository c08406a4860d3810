"""Flower's two apps on a Grid in memory: what they make of their settings, and of a run folder."""

import itertools
import json

import numpy as np
import pytest
import tomli_w
from sklearn.datasets import load_digits

import concordfl as cf
from concordfl import ConcordError, SettingError
from concordfl.deploy import newcomer, predictions
from concordfl.study import reports
from fake_carrier import FakeTime

flwr = pytest.importorskip("flwr", reason="Flower is not installed: pip install concordfl[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict  # noqa: E402
from flwr.common.constant import ErrorCode  # noqa: E402

from concordfl.engine.flower import server  # noqa: E402
from concordfl.engine.flower.carrier import GridCarrier, from_record, to_record  # noqa: E402
from concordfl.engine.flower.meeting import Lost  # noqa: E402
from concordfl.engine.flower.parcel import Answer, Request  # noqa: E402
from fake_grid import FakeGrid, be_an_app  # noqa: E402

RUN = {
    "run": {"rounds": 3, "evaluate_every": 3, "checkpoint_seconds": 0},
    "data": {"name": "digits", "limit": 200},
    "scenario": {"clients": 2, "partition": {"kind": "iid"}},
    "algorithm": {"name": "apfl"},
}


def nodes(tmp_path, names=("client-0", "client-1"), **config):
    given = {"data": "simulated", "share": "size,labels,group,digest", **config}
    return FakeGrid(
        {
            number: {"name": name, "states": str(tmp_path / name), **given}
            for number, name in enumerate(names, 11)
        }
    )


def serve(grid, tmp_path, run=None, **given):
    text = run if isinstance(run, str) else tomli_w.dumps(run or RUN)
    table = {"run": text, "out": str(tmp_path / "out"), "clients": 2, "wait": 5.0, **given}
    settings = server.ServerSettings.from_table(table, "run-config")
    return server.serve(GridCarrier(grid), settings, FakeTime())


def simulated(run):
    return cf.run({**run, "run": {**run["run"], "executor": "serial"}}).summary


def test_a_run_file_gives_the_bits_of_its_simulation(tmp_path):
    expected = simulated(RUN)
    summary = serve(nodes(tmp_path), tmp_path)
    for name in ("parameters_sha256", "states_sha256"):
        assert summary[name] == expected[name]
    assert summary["executor"] == "flower"
    assert summary["preprocessing"] == expected["preprocessing"]
    assert summary["task"] == expected["task"]
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written["parameters_sha256"] == expected["parameters_sha256"]
    assert (tmp_path / "out" / "models" / "final.safetensors").exists()
    assert serve(FakeGrid({}), tmp_path)["parameters_sha256"] == expected["parameters_sha256"]
    with pytest.raises(SettingError, match="by the run file that it began with"):
        serve(nodes(tmp_path), tmp_path, {**RUN, "algorithm": {"name": "fedavg"}})


def test_what_says_how_a_simulation_is_computed_has_no_effect(tmp_path, caplog):
    run = {**RUN, "run": {**RUN["run"], "rounds": 1, "executor": "processes", "workers": 3}}
    serve(nodes(tmp_path), tmp_path, run)
    assert "run.executor = 'processes' has no effect: clients are SuperNodes" in caplog.text
    assert "run.workers = 3 has no effect" in caplog.text
    assert "run.ray_address" not in caplog.text


def result_of(tmp_path, name):
    """Where a client keeps what came of the run."""
    (folder,) = (tmp_path / name).glob("*/result")
    return folder


def samples(tmp_path):
    """Some digits as somebody would bring them."""
    data = load_digits()
    np.savez(tmp_path / "some.npz", x=data.images[:40].astype(np.uint8), y=data.target[:40])
    return tmp_path / "some.npz"


SHORT = {"fedconcat": {"clusters": 2, "encoder_rounds": 2, "head_rounds": 2, "random_inputs": 50}}
DELIVERED = ("apfl", "cfl", "fedavg", "fedconcat", "fedconceptem", "fedgmm", "ifca")


@pytest.mark.parametrize("method", DELIVERED)
def test_every_client_can_predict_with_what_it_has(tmp_path, method):
    """As the simulation's folder predicts for it, with nothing of another client at hand."""
    run = {**RUN, "algorithm": {"name": method, **SHORT.get(method, {})}}
    serve(nodes(tmp_path, share="size"), tmp_path, run)
    alone = {**run, "run": {**run["run"], "executor": "serial"}}
    cf.run(alone, out=tmp_path / "simulated")
    for name in ("client-0", "client-1"):
        folder = result_of(tmp_path, name)
        found = predictions.predict(folder, samples(tmp_path))
        expected = predictions.predict(tmp_path / "simulated", samples(tmp_path), client=name)
        assert found.client == name
        assert np.array_equal(found.values, expected.values)
        other = {"client-0": "client-1", "client-1": "client-0"}[name]
        assert not any(
            other in file.read_text(errors="replace")
            for file in folder.rglob("*")
            if file.is_file()
        )


def test_who_comes_after_the_run_is_given_its_result_too(tmp_path):
    run = {**RUN, "scenario": {**RUN["scenario"], "clients": 3}, "algorithm": {"name": "fedem"}}
    everybody = ("client-0", "client-1", "client-2")
    grid = nodes(tmp_path, everybody)
    late = grid.node_configs.pop(13)
    summary = serve(grid, tmp_path, run)
    before = (result_of(tmp_path, "client-0") / "summary.json").stat().st_ino
    grid.node_configs = {13: late, 11: grid.node_configs[11]}
    assert serve(grid, tmp_path, run)["parameters_sha256"] == summary["parameters_sha256"]
    assert (result_of(tmp_path, "client-0") / "summary.json").stat().st_ino == before
    folder = result_of(tmp_path, "client-2")
    file = samples(tmp_path)
    with pytest.raises(SettingError, match="got none: adapt to labelled examples of a new one"):
        predictions.predict(folder, file)
    newcomer.adapt(folder, file, client="client-2")
    newcomer.adapt(tmp_path / "out", file, client="client-2")
    found = predictions.predict(folder, file)
    expected = predictions.predict(tmp_path / "out", file, client="client-2")
    assert found.client == "client-2"
    assert np.array_equal(found.values, expected.values)
    # A result that has been used is not written again; nor does it matter that the node which
    # client-2 was before still seems to be there.
    grid.node_configs[14] = late
    serve(grid, tmp_path, run)
    assert predictions.predict(folder, file).client == "client-2"


def test_what_needs_the_server_says_so_at_a_client(tmp_path):
    serve(nodes(tmp_path), tmp_path)
    folder = result_of(tmp_path, "client-0")
    for work in (cf.resume, lambda folder: reports.of_folders([folder])):
        with pytest.raises(ConcordError, match="what a client was given of it"):
            work(folder)


def test_a_run_that_was_broken_off_is_gone_on_with(tmp_path):
    grid, pushed = nodes(tmp_path), itertools.count(1)

    def break_off():
        if next(pushed) == 8:  # in the third round
            raise KeyboardInterrupt

    grid.before = break_off
    with pytest.raises(KeyboardInterrupt):
        serve(grid, tmp_path)
    with pytest.raises(SettingError, match="must be gone on with by Flower"):
        cf.resume(tmp_path / "out")
    with pytest.raises(SettingError, match="at least one client of the run must be back"):
        serve(FakeGrid({}), tmp_path)
    expected = simulated(RUN)
    summary = serve(nodes(tmp_path), tmp_path)
    assert summary["parameters_sha256"] == expected["parameters_sha256"]
    assert summary["states_sha256"] == expected["states_sha256"]


def test_balanced_classes_come_from_the_labels_that_clients_share(tmp_path):
    run = {**RUN, "objective": {"class_weights": "balanced"}, "algorithm": {"name": "fedavg"}}
    summary = serve(nodes(tmp_path), tmp_path, run)
    assert summary["parameters_sha256"] == simulated(run)["parameters_sha256"]
    with pytest.raises(
        SettingError, match="needs clients that share labels, got client 'client-0'"
    ):
        serve(nodes(tmp_path, share="size"), tmp_path / "other", run)


def test_what_a_client_does_not_share_the_server_never_sees(tmp_path):
    grid = nodes(tmp_path, share="size")
    run = {**RUN, "algorithm": {"name": "ifca", "num_models": 2}}
    summary = serve(grid, tmp_path, run)
    assert summary["parameters_sha256"] == simulated(run)["parameters_sha256"]
    assert summary["states_sha256"] == ""
    assert summary["group_sizes"] is None
    assert simulated(run)["group_sizes"] == [2] or simulated(run)["group_sizes"] == [1, 1]
    facts = json.loads((tmp_path / "out" / "federation.json").read_text())
    assert [client["labels"] for client in facts["clients"]] == [None, None]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"clients": 3}, "3 clients must be there within 5 s, got 2: 'client-0', 'client-1'"),
        ({"file": "run.toml"}, "one of run and file must be given"),
        ({"run": "[run"}, "run must be the text of a run file"),
        ({"timeout": -1.0}, "timeout must be > 0, got -1.0"),
        ({"client": 3}, "did you mean 'clients'"),
    ],
)
def test_a_servers_settings_are_checked(tmp_path, given, rule):
    with pytest.raises(SettingError, match=rule):
        serve(nodes(tmp_path), tmp_path, **given)


def test_a_method_that_pools_data_is_refused(tmp_path):
    with pytest.raises(SettingError, match="clients' data must stay with them, got Centralized"):
        serve(nodes(tmp_path), tmp_path, {**RUN, "algorithm": {"name": "centralized"}})


def introduction(tmp_path, run=RUN, **config):
    """How a node with this config answers, in words."""
    grid = nodes(tmp_path, ("client-0",), **config)
    request = Request("0" * 32, tomli_w.dumps(run)).to_bytes()
    carrier = GridCarrier(grid)
    ticket = carrier.send(11, request, 10.0)
    return Answer.from_bytes(carrier.collect([ticket])[ticket]).check()


def test_a_client_introduces_itself(tmp_path):
    card = introduction(tmp_path).card
    assert card.name == "client-0"
    assert sum(card.labels) == card.sizes["train"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "config",
    [{"name": "nobody"}, {"name": 3}, {"share": "all"}, {"share": "labels"}, {"colour": "red"}],
)
def test_a_clients_settings_are_checked(tmp_path, config, caplog):
    answer = introduction(tmp_path, **config)
    assert answer.card is None
    assert "Error: the client's log says why" in answer.refusal
    assert "got" in caplog.text or "known are" in caplog.text


def test_a_run_files_own_code_must_be_trusted(tmp_path):
    run = {**RUN, "model": {"name": "toy_models:build"}}
    assert "unless the node's config says trust=true" in introduction(tmp_path, run).refusal


def test_errors_of_flower_are_told_apart():
    be_an_app()
    message = Message(to_record(b"x"), 1, "query")
    message.metadata.__dict__["_message_id"] = "a"

    class Grid:
        def pull_messages(self, ids):
            return [self.reply]

    grid = Grid()
    for code, is_gone in {ErrorCode.NODE_UNAVAILABLE: True, ErrorCode.UNKNOWN: False}.items():
        grid.reply = Message(Error(code, "private"), reply_to=message)
        (lost,) = GridCarrier(grid).collect(["a"]).values()
        assert isinstance(lost, Lost)
        assert lost.is_gone is is_gone
        assert "private" not in lost.why
    for content in (
        RecordDict({}),
        RecordDict({"concordfl": ConfigRecord({"parcel": 1})}),
        RecordDict({"concordfl": ArrayRecord({"parcel": Array("f4", (1,), "other", b"x")})}),
    ):
        grid.reply = Message(content, reply_to=message)
        assert GridCarrier(grid).collect(["a"])["a"].why.startswith("a message must hold one array")
    grid.reply = Message(to_record(b"data"), reply_to=message)
    assert GridCarrier(grid).collect(["a"]) == {"a": b"data"}
    assert GridCarrier(grid).collect(["b"]) == {}
    assert from_record(grid.reply.content) == b"data"
