"""Real SuperNodes on loopback: the same bits as a simulation of the same run file."""

import json
import runpy
import signal
from pathlib import Path

import pytest

import concordfl as cf
from concordfl import DataError
from flower_services import BIN, Services, wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install concordfl[flower]")
pytestmark = pytest.mark.skipif(
    not (BIN / "flower-superlink").exists(), reason="Flower's services are not installed"
)

EXAMPLES = Path(__file__).parents[3] / "examples"
ROUNDS = 3
SECONDS = 900  # for one run: a trip to a SuperNode takes seconds whatever is computed


def settings(clients, method, **run):
    shift = {"kind": "label-map", "map": "reverse", "share": 0.5}
    return {
        "run": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "checkpoint_seconds": 0, **run},
        "data": {"name": "digits", "limit": 400},
        "scenario": {"clients": clients, "partition": {"kind": "iid"}, "shifts": [shift]},
        "training": {"lr": 0.1, "batch_size": 32},
        "algorithm": method,
    }


def expected(table):
    serial = {**table, "run": {**table["run"], "executor": "serial"}}
    return cf.run(serial).summary


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def assert_same(summary, simulated):
    assert summary["executor"] == "flower"
    for name in ("parameters_sha256", "states_sha256", "bytes", "missing"):
        ours, theirs = summary[name], simulated[name]
        if name == "bytes":  # the simulation has held-out clients to evaluate too
            ours, theirs = ({key: each[key] for key in ("down", "up")} for each in (ours, theirs))
        assert ours == theirs, name
    for name in ("local_accuracy", "local_loss", "validation_accuracy"):
        assert summary["final"].get(name) == simulated["final"].get(name)


def test_two_supernodes_give_the_bits_of_the_simulation(tmp_path):
    """Another method does so encrypted, in the tests of `federate up`."""
    table = settings(2, {"name": "fedconceptem", "num_models": 2})
    with Services(tmp_path) as services:
        for name in ("client-0", "client-1"):
            services.start_node(name)
        out = services.run("pair", table, clients=2, timeout=300.0, wait=300.0)
        services.wait_for(out, SECONDS)
    assert_same(summary_of(out), expected(table))
    assert not list(out.glob("models/clients/*"))  # what is personal stays with the clients


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    with Services(tmp_path_factory.mktemp("flower")) as services:
        for number in range(4):
            services.start_node(f"client-{number}")
        yield services


SLOW = {
    "fedavg": {},
    "fedconceptem": {
        "num_models": 4,
        "adaptive": True,
        "threshold": 0.245,
        "patience": 1,
        "tolerance": 1.0,
    },
    "fedgmm": {},
    "fedconcat": {"clusters": 2, "encoder_rounds": 2, "head_rounds": 2, "random_inputs": 50},
    "fedvc": {},
    "ifca": {"num_models": 2},
    "apfl": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_four_supernodes_give_the_bits_of_the_simulation(four, name):
    table = settings(4, {"name": name, **SLOW[name]})
    out = four.run(name, table, clients=4, timeout=300.0, wait=300.0)
    four.wait_for(out, SECONDS)
    assert_same(summary_of(out), expected(table))


@pytest.mark.slow
def test_a_supernode_killed_in_mid_run_comes_back_with_its_state(tmp_path):
    table = settings(2, {"name": "apfl"})
    with Services(tmp_path) as services:
        for name in ("client-0", "client-1"):
            services.start_node(name)
        out = services.run("killed", table, clients=2, timeout=600.0, wait=300.0)
        wait_until(lambda: list(out.glob("checkpoint/manifest-*1.json")), "round 1", SECONDS)
        services.stop("client-0", how=signal.SIGKILL)
        services.start_node("client-0")
        services.wait_for(out, SECONDS)
    assert_same(summary_of(out), expected(table))


@pytest.mark.slow
def test_a_server_killed_in_mid_run_is_gone_on_with(tmp_path):
    table, nodes = settings(2, {"name": "apfl"}), ("client-0", "client-1")
    with Services(tmp_path) as services:
        for name in nodes:
            services.start_node(name)
        out = services.run("killed", table, clients=2, timeout=300.0, wait=300.0)
        wait_until(lambda: list(out.glob("checkpoint/manifest-*1.json")), "round 1", SECONDS)
        for name in ("link", *nodes):
            services.stop(name, how=signal.SIGKILL)
        services.start_link()
        for name in nodes:
            services.start_node(name)
        assert services.run("killed", table, clients=2, timeout=300.0, wait=300.0) == out
        services.wait_for(out, SECONDS)
    assert_same(summary_of(out), expected(table))


@pytest.mark.slow
def test_four_hospitals_with_folders_of_their_own(tmp_path, monkeypatch):
    """The heart-disease data as four .csv files, each where its SuperNode alone finds it."""
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(EXAMPLES / "heart_disease_csv.py"), run_name="__main__")
    except DataError as error:
        pytest.skip(f"the data are not here: {error}")
    table = {
        "run": {"rounds": ROUNDS, "evaluate_every": 1},
        "data": {"folder": "hospitals", "label": "diagnosis"},
        "algorithm": {"name": "apfl"},
    }
    simulated = expected(table)
    hospitals = sorted(path.stem for path in (tmp_path / "hospitals").iterdir())
    with Services(tmp_path / "services") as services:
        for name in hospitals:
            own = tmp_path / "own" / name
            own.mkdir(parents=True)
            (tmp_path / "hospitals" / f"{name}.csv").rename(own / "patients.csv")
            services.start_node(name, data=str(own))
        out = services.run("hearts", table, clients=len(hospitals), timeout=300.0, wait=300.0)
        services.wait_for(out, SECONDS)
    assert_same(summary_of(out), simulated)
    assert summary_of(out)["preprocessing"] == simulated["preprocessing"]


@pytest.mark.slow
def test_encrypted_with_registered_nodes_alone(tmp_path):
    """A node without a registered key, or with other root certificates, takes no part."""
    import flower_keys

    for name in ("ours", "others"):
        flower_keys.write_certificates(tmp_path / name)
    table = settings(2, {"name": "fedavg"})
    clients = ("client-0", "client-1", "unregistered", "misled")
    with Services(tmp_path / "services", tmp_path / "ours") as services:
        for client in clients:
            flower_keys.write_node_key(tmp_path / client)
        for client in ("client-0", "client-1", "misled"):
            services.flwr("supernode", "register", tmp_path / f"{client}.pub", "here")
        services.start_node("unregistered", tmp_path / "unregistered")
        services.start_node("misled", tmp_path / "misled", tmp_path / "others")
        for client in ("client-0", "client-1"):
            services.start_node(client, tmp_path / client)
        out = services.run("safe", table, clients=2, timeout=300.0, wait=300.0)
        services.wait_for(out, SECONDS)
        logs = {client: services.log_of(client) for client in clients}
    assert_same(summary_of(out), expected(table))
    assert {client for client in clients if "SuperNode ID" in logs[client]} == {
        "client-0", "client-1"
    }  # fmt: skip
    assert "CERTIFICATE_VERIFY_FAILED" in logs["misled"]
    assert "Failed to activate SuperNode" in logs["unregistered"]
