"""What other tools hold of a run is what its records say, also after a kill; and no tracker can
cost a run.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

import concordfl as cf
import track_readers as readers
from command import concordfl
from concordfl.track import figures, tracker

RUN = {
    "run": {"rounds": 12, "evaluate_every": 2},
    "scenario": {"clients": 4, "split": [0.6, 0.2, 0.2]},
    "data": {"name": "digits", "limit": 200},
    "algorithm": {"name": "fedconceptem"},
}
QUICK = {**RUN, "run": {"rounds": 2}, "algorithm": {"name": "fedavg"}}
FILE = """
[run]
rounds = 2
[scenario]
clients = 3
[data]
name = "digits"
limit = 100
"""


def single(points):
    return {
        round: {name: float(np.float32(value)) for name, value in figures.items()}
        for round, figures in points.items()
    }


def mlflow_of(folder):
    """A client of the store in a run's folder, and the id of its only run."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{quote(str(folder / 'mlflow.db'))}")
    experiment = client.get_experiment_by_name("concordfl").experiment_id
    [run] = client.search_runs([experiment])
    return client, run.info.run_id


def tracked_ids(folder):
    """What MLflow and W&B call a run."""
    files = [Path(folder) / "tracked" / name / "run.json" for name in ("mlflow", "wandb")]
    return [json.loads(file.read_text())["run_id"] for file in files]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


# --- a run that is killed -------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import concordfl as cf
import test_track

def kill(event):
    if event.turn.round == 9:
        os.kill(os.getpid(), signal.SIGKILL)

out, trackers = sys.argv[1], cf.track.by_names(sys.argv[2])
cf.run(test_track.RUN, out=out, until=4, on_round=trackers)
print(*test_track.tracked_ids(out), flush=True)
cf.resume(out, on_round=[*trackers, kill])
"""


def through(proxy):
    """An environment in which whatever wants to reach a host by HTTP meets our proxy."""
    # W&B would be served by this process's service, and MLflow is silent where it sees CI
    hidden = ("WANDB_SERVICE", "CI", "PYTEST_CURRENT_TEST", "MLFLOW_DISABLE_TELEMETRY", "NO_PROXY")
    address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | proxies | paths


class Killed:
    """A run with a checkpoint after round 4, killed in round 9, and resumed; tracked throughout."""

    def __init__(self, folder):
        names = "csv,tensorboard,mlflow,wandb"
        self.folder, self.tracked = folder, folder / "tracked"
        self.straight = cf.run(RUN)
        with socket.create_server(("127.0.0.1", 0)) as proxy:
            command = [sys.executable, "-c", KILLED, folder, names]
            options = {"stdout": subprocess.PIPE, "text": True, "timeout": 300}
            done = subprocess.run(command, env=through(proxy), **options)
            assert done.returncode == -signal.SIGKILL
            proxy.setblocking(False)
            with pytest.raises(BlockingIOError):  # nothing is sent anywhere
                proxy.accept()
        self.first_ids = done.stdout.split()
        self.left = readers.of_csv(self.tracked / "csv")
        self.left_events, _ = readers.of_tensorboard(self.tracked / "tensorboard")
        self.result = cf.resume(folder, on_round=cf.track.by_names(names))
        self.expected = readers.of_records(self.result.records)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    return Killed(tmp_path_factory.mktemp("killed") / "<b>run? #1 %20 ü, \n")


def test_tracking_changes_no_bit(killed):
    for digest in ("parameters_sha256", "states_sha256"):
        assert killed.result.summary[digest] == killed.straight.summary[digest]
    assert [*killed.expected] == [2, 4, 6, 8, 10, 12]


def test_the_killed_run_had_tracked_what_was_played_again(killed):
    assert [*killed.left] == [*killed.left_events] == [2, 4, 6, 8]
    assert killed.left[8]["seconds"] != killed.expected[8]["seconds"]


def test_csv_holds_the_records(killed):
    assert readers.of_csv(killed.tracked / "csv") == killed.expected
    settings = (killed.tracked / "csv/settings.csv").read_text().splitlines()
    assert {"run.rounds,12", "algorithm.name,fedconceptem"} <= {*settings}


def test_tensorboard_holds_the_records(killed):
    found, selected = readers.of_tensorboard(killed.tracked / "tensorboard")
    assert found == single(killed.expected)
    summary = killed.result.summary["selected"]
    assert selected == {
        f"selected/{name}": float(np.float32(value)) for name, value in summary.items()
    }
    assert len([*(killed.tracked / "tensorboard").iterdir()]) == 1


def test_tensorboard_holds_the_settings(killed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(killed.tracked / "tensorboard")).Reload()
    [content] = events.PluginTagToContent("hparams").values()
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["run.rounds"].number_value == 12
    assert hparams["algorithm.name"].string_value == "fedconceptem"
    assert hparams["folder"].string_value == str(killed.folder)


def test_mlflow_holds_the_records(killed):
    client, run_id = mlflow_of(killed.tracked / "mlflow")
    assert run_id == killed.first_ids[0]
    assert readers.of_mlflow(client, run_id) == killed.expected
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", killed.folder.name)
    assert run.data.params["run.rounds"] == "12"
    assert run.data.params["folder"] == str(killed.folder)
    selected = killed.result.summary["selected"]
    assert run.data.tags["selected/local_accuracy"] == str(selected["local_accuracy"])


def test_wandb_holds_the_records(killed):
    history, config, summary, run_id = readers.of_wandb(killed.tracked / "wandb")
    assert [killed.first_ids[0], run_id] == tracked_ids(killed.folder) == killed.first_ids
    assert history == killed.expected
    assert (config["run.rounds"], config["folder"]) == (12, str(killed.folder))
    selected = killed.result.summary["selected"]
    assert summary["selected/local_accuracy"] == selected["local_accuracy"]


def test_a_finished_run_can_be_tracked_again(killed):
    names = "csv,tensorboard,mlflow"
    cf.resume(killed.folder, on_round=cf.track.by_names(names))
    test_csv_holds_the_records(killed)
    test_tensorboard_holds_the_records(killed)
    test_mlflow_holds_the_records(killed)


def test_an_mlflow_run_that_says_something_else_is_not_continued(killed):
    client, first = mlflow_of(killed.tracked / "mlflow")
    client.log_metric(first, "local/accuracy", 0.5, step=12)
    cf.resume(killed.folder, on_round=cf.track.MLflow())
    second, _ = tracked_ids(killed.folder)
    assert second != first
    assert readers.of_mlflow(client, second) == killed.expected
    client.delete_run(second)  # by its user: it is begun again
    cf.resume(killed.folder, on_round=cf.track.MLflow())
    third, _ = tracked_ids(killed.folder)
    assert third not in (first, second)
    assert readers.of_mlflow(client, third) == killed.expected


# --- where it goes --------------------------------------------------------------------------------


def test_mlflow_goes_to_the_store_of_the_environment(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'all.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    kept = cf.run(QUICK, out=tmp_path / "run", on_round=cf.track.MLflow())
    in_memory = cf.run(QUICK, on_round=cf.track.MLflow())
    assert [one.name for one in (tmp_path / "run/tracked/mlflow").iterdir()] == ["run.json"]
    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    by_name = {run.info.run_name: readers.of_mlflow(client, run.info.run_id) for run in found}
    assert by_name == {
        "run": readers.of_records(kept.records),
        "fedavg-seed0": readers.of_records(in_memory.records),
    }


def test_runs_in_memory_have_a_new_folder_each(tmp_path):
    track = [cf.track.CSV(tmp_path / "all"), cf.track.TensorBoard(tmp_path / "all")]
    comparison = cf.compare(
        {**RUN, "run": {"rounds": 2}, "algorithm": {}}, algorithms=["local", "fedavg"],
        on_round=track,
    )  # fmt: skip
    again = cf.run(QUICK, on_round=cf.track.CSV(tmp_path / "all"))
    names = ["local-seed0", "fedavg-seed0", "fedavg-seed0-2"]
    results = [comparison["local", 0], comparison["fedavg", 0], again]
    for name, result in zip(names, results, strict=True):
        found = readers.of_csv(tmp_path / "all/csv" / name)
        assert found == readers.of_records(result.records)
    found, _ = readers.of_tensorboard(tmp_path / "all/tensorboard/local-seed0")
    assert found == single(readers.of_records(results[0].records))


@pytest.mark.parametrize(
    ("folder", "out", "rule"),
    [
        (None, None, "csv needs a folder for a run in memory, got none"),
        ("tracked", "run", "csv must have no folder of its own for a run that has one, got '"),
    ],
)
def test_a_place_must_be_clear(tmp_path, folder, out, rule):
    track = cf.track.CSV(folder and tmp_path / folder)
    with pytest.raises(cf.SettingError, match=rule):
        cf.run(QUICK, out=out and tmp_path / out, on_round=track)


# --- runs that end otherwise ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("fedavg", False), ("fedavg", True), ("fedgmm-unsupervised", True)],
    ids=["as it was", "a record more", "another record"],
)
def test_the_round_in_which_a_run_is_stopped_is_tracked_as_recorded(tmp_path, algorithm, changes):
    seen = []
    stops_between = algorithm == "fedavg" and changes  # in a round that was not evaluated

    def stop(event):
        if event.record is not None:
            seen.append(figures.point(event.record))
        if seen and stops_between == (event.record is None):
            raise cf.Stop

    result = cf.run(
        {**RUN, "algorithm": {"name": algorithm}},
        out=tmp_path / "run",
        on_round=[cf.track.CSV(), stop],
    )
    assert changes == (seen != [*map(figures.point, result.records)])
    assert readers.of_csv(tmp_path / "run/tracked/csv") == readers.of_records(result.records)


class Broken(cf.track.CSV):
    """Fails where it is told to."""

    def __init__(self, fails):
        super().__init__()
        self.fails, self.calls = fails, []

    def open(self, run):
        if self.fails == "open":
            raise OSError("no store\nat all")
        sheet = super().open(run)

        def fail(*_):
            self.calls.append(1)
            raise RuntimeError("the store\nis gone")

        setattr(sheet, self.fails, fail)
        return sheet


@pytest.mark.parametrize("fails", ["add", "close"])
def test_a_tracker_that_fails_costs_no_run(tmp_path, caplog, fails):
    track = Broken(fails)
    result = cf.run(RUN, out=tmp_path / "run", on_round=track)
    assert result.summary["parameters_sha256"] == cf.run(RUN).summary["parameters_sha256"]
    assert [*map(len, (track.calls, caplog.records))] == [1, 1]
    assert caplog.messages == [
        "Tracking by csv has failed and the run goes on without it: RuntimeError: the store; "
        f"`concordfl resume {tmp_path / 'run'} --track csv` writes the rest"
    ]
    done = concordfl(tmp_path, "resume", "run", "--track", "csv")
    assert done.returncode == 0, done.stderr
    assert readers.of_csv(tmp_path / "run/tracked/csv") == readers.of_records(result.records)


def test_a_tracker_that_cannot_begin_is_refused(tmp_path):
    with pytest.raises(cf.SettingError) as refused:
        cf.run(QUICK, out=tmp_path / "run", on_round=Broken("open"))
    assert str(refused.value) == "the tracker csv must be able to write, got OSError: no store"
    assert not [*(tmp_path / "run").glob("clients/*")]  # nothing was played


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line_tracks(tmp_path):
    (tmp_path / "run.toml").write_text(FILE)
    done = concordfl(tmp_path, "run", "run.toml", "--out", "one", "--track", "tensorboard, csv")
    assert done.returncode == 0, done.stderr
    records = readers.of_records(cf.load(tmp_path / "one").records)
    assert readers.of_csv(tmp_path / "one/tracked/csv") == records
    assert readers.of_tensorboard(tmp_path / "one/tracked/tensorboard")[0] == single(records)

    compare = ("compare", "run.toml", "--algorithms", "local,fedavg", "--out", "both")
    for options in [(), ("--track", "csv")]:  # finished runs are tracked too
        done = concordfl(tmp_path, *compare, *options)
        assert done.returncode == 0, done.stderr
    for folder in (tmp_path / "both").glob("*-seed*"):
        records = readers.of_records(cf.load(folder).records)
        assert readers.of_csv(folder / "tracked/csv") == records


@pytest.mark.parametrize("command", ["run", "compare", "resume"])
def test_what_cannot_be_tracked_is_refused_before_any_work(tmp_path, monkeypatch, command):
    (tmp_path / "run.toml").write_text(FILE)
    arguments = {
        "run": ("run", "run.toml", "--out", "new"),
        "compare": ("compare", "run.toml", "--algorithms", "fedavg", "--out", "new"),
        "resume": ("resume", "nowhere"),
    }[command]
    unknown = concordfl(tmp_path, *arguments, "--track", "csv,tensorbord")
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "concordfl: a tracker must be one of csv, tensorboard, mlflow, wandb, got 'tensorbord': "
        "did you mean 'tensorboard'?\n",
    )
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    missing = concordfl(tmp_path, *arguments, "--track", "mlflow")
    assert (missing.returncode, missing.stderr) == (
        2,
        "concordfl: the tracker mlflow needs the library mlflow, got none: "
        "pip install 'concordfl[track]'\n",
    )
    assert not (tmp_path / "new").exists()


def test_the_libraries_are_only_loaded_when_they_are_used():
    script = """
    import sys
    import concordfl as cf
    from concordfl.cli.app import app
    assert cf.track.CSV and app
    print([name for name in ("tensorboard", "mlflow", "wandb") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# --- names ----------------------------------------------------------------------------------------


def test_names_are_such_as_all_tools_take_and_differ(tmp_path):
    keys = ["a/b", "a.2fb", "..", "", "=1+1", "<script>", "x\ud800", "τ", "a\nb", "model 1"]
    record = {"round": 3, "server": {key: number for number, key in enumerate(keys)}}
    found = figures.point(record).figures
    assert [*found.values()] == [*range(len(keys))]
    from mlflow.utils.validation import _validate_metric_name

    for name in found:
        assert name.startswith("server/")
        assert name.encode().decode() == name
        _validate_metric_name(name)


def test_what_is_a_figure():
    record = {
        "round": 3,
        "stage": "train",
        "server": {"table": [[1.0, 2.0]], "flag": True, "empty": [], "lost": None, "list": [1, 2]},
        "thresholds": {"x": [0.1]},
        "failures": [{"client": "a", "round": 1}],
        "local": {"loss": float("nan")},
    }
    found = figures.point(record)
    assert found.round == 3
    assert np.isnan(found.figures.pop("local/loss"))
    assert found.figures == {"server/flag": 1, "server/list/0": 1, "server/list/1": 2}


def test_figures_that_come_later_and_no_numbers(tmp_path):
    """A column that is new makes a new table; what is no number is written as such."""
    file = tmp_path / "figures.csv"
    sheet = cf.track.csv._Table(file)
    sheet.restart([])
    assert file.read_text() == "round\n"
    sheet.add([figures.Point(1, {"a": 0.1 + 0.2})])
    sheet.add([figures.Point(2, {"a": float("nan")})])
    sheet.add([figures.Point(3, {"b": float("inf")})])
    sheet.add([figures.Point(4, {"b": 2**60 + 1, "a": 1e-320})])
    assert file.read_text() == (
        "round,a,b\n1,0.30000000000000004,\n2,nan,\n3,,inf\n4,1e-320,1152921504606846977\n"
    )


def test_a_damaged_id_is_one_line(tmp_path):
    cf.run(QUICK, out=tmp_path / "run", on_round=cf.track.WandB())
    (tmp_path / "run/tracked/wandb/run.json").write_text('{"run_id": "../../elsewhere"}')
    with pytest.raises(cf.SettingError, match="the tracker wandb must be able to write, got") as no:
        cf.resume(tmp_path / "run", on_round=cf.track.WandB())
    assert "\n" not in str(no.value)


def test_observers_are_functions_or_watchers():
    for wrong in (3, [print, "csv"]):
        with pytest.raises(cf.SettingError, match="on_round must be a function or a list"):
            cf.run(QUICK, on_round=wrong)


def test_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cf.run(QUICK, out="run", on_round=cf.track.CSV())
    assert f"folder,{Path('run').resolve()}" in Path("run/tracked/csv/settings.csv").read_text()
