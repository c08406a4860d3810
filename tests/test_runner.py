import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import concordfl as cf
from concordfl import runner
from concordfl.engine import choice
from concordfl.models import make_builder

QUICK = {
    "run": {"rounds": 2, "evaluate_every": 1},
    "scenario": {"clients": 3},
    "data": {"name": "digits", "limit": 200},
}


def test_five_lines(tmp_path):
    result = cf.run(QUICK, algorithm={"name": "fedavg"}, out=tmp_path / "run")
    assert result.accuracy == result.summary["final"]["local_accuracy"]
    assert result.folder == tmp_path / "run"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "config.toml", "records.jsonl", "summary.json", "checkpoint", "models",
    }  # fmt: skip
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["algorithm"] == "fedavg"
    assert summary["versions"]["torch"] == torch.__version__
    assert len(summary["parameters_sha256"]) == len(summary["states_sha256"]) == 64
    assert len((tmp_path / "run/records.jsonl").read_text().splitlines()) == 2
    again = cf.resume(tmp_path / "run")
    sealed = {"format", "records_sha256", "sha256"}
    assert again.summary == {key: summary[key] for key in summary if key not in sealed}
    assert again.records == result.records
    assert (
        cf.run(tmp_path / "run/config.toml").summary["parameters_sha256"]
        == summary["parameters_sha256"]
    )


def test_the_saved_model_predicts_what_the_run_reported(tmp_path):
    result = cf.run(QUICK, out=tmp_path / "run")
    module = make_builder("mlp", (1, 8, 8), 10, {})()
    module.load_state_dict(load_file(tmp_path / "run/models/final.safetensors"))
    federation = runner.make_federation(runner.load_config(QUICK))
    test = federation.splits("held-out-original").test
    with torch.no_grad():
        accuracy = (module.eval()(test.inputs()).argmax(1) == test.y).double().mean().item()
    assert accuracy == pytest.approx(result.summary["final"]["global_accuracy"])


def test_a_script_without_a_main_guard_may_use_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import concordfl as cf\n"
        "result = cf.run(data={'name': 'digits', 'limit': 100}, scenario={'clients': 2},"
        " run={'rounds': 1, 'executor': 'processes'})\n"
        "print('reached once', result.summary['executor'])\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "reached once processes\n"


def test_an_algorithm_defined_in_a_script_works_with_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "import toys\n"
        "from concordfl.algorithms import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    pass\n"
        "if __name__ == '__main__':\n"
        "    print(toys.result(toys.experiment(Mine(), executor='processes'))['rounds'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )
    assert done.stdout == "4\n"


def choose(**run):
    settings = runner.load_config(QUICK, run=run)
    federation = runner.make_federation(settings)
    model = runner.make_model(settings, federation)
    setup = runner.make_setup(settings, model, runner.make_objective(settings, federation))
    return choice.choose(setup, federation, settings.run)


def test_the_executor_is_chosen_by_the_work(monkeypatch):
    monkeypatch.setattr(choice, "available_cores", lambda: 4)
    assert choose(executor="serial").reason == "asked for"
    assert choose(executor="processes")[:2] == ("processes", 4)
    assert choose(executor="processes", workers=3).workers == 3
    short = choose(rounds=1)
    assert short.name == "serial"
    assert "too short for worker processes" in short.reason
    assert choose(rounds=10**6)[:2] == ("processes", 4)
    monkeypatch.setattr(choice, "available_cores", lambda: 1)
    assert choose(rounds=10**6).reason == "one core"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away here")
def test_only_cores_that_the_process_may_use_are_counted():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert choice.available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert choice.available_cores() == len(allowed)


def test_a_device_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(cf.SettingError, match="device must be present, got 'cuda'"):
        cf.run(QUICK, run={"device": "cuda"})
    assert choose(device="auto", rounds=1).name == "serial"


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(
        cf.SettingError, match="model 'toys:batch_norm_net' must take examples of shape"
    ):
        cf.run(QUICK, model={"name": "toys:batch_norm_net"})
    with pytest.raises(cf.SettingError, match="must give 10 outputs, one per class, got"):
        cf.run(QUICK, model={"name": "toy_models:narrow"})


def test_models_with_buffers_run_everywhere():
    settings = {
        "data": {
            "name": "synthetic-mixture",
            "clients": 3,
            "examples_per_client": 60,
            "dimensions": 5,
        },
        "scenario": {"partition": {"kind": "natural"}},
        "model": {"name": "toys:batch_norm_net"},
    }
    serial = cf.run(settings, run={"rounds": 2, "executor": "serial"}).summary["parameters_sha256"]
    assert (
        cf.run(settings, run={"rounds": 2, "executor": "processes", "workers": 2}).summary[
            "parameters_sha256"
        ]
        == serial
    )


def test_a_run_is_resumed_with_the_executor_it_began_with(tmp_path, monkeypatch):
    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cf.run(QUICK, out=tmp_path / "run", on_round=stop)
    monkeypatch.setattr(runner, "choose", lambda *_: pytest.fail("chosen anew"))
    assert cf.resume(tmp_path / "run").summary["executor"] == "serial"


@pytest.mark.parametrize(
    "model", [{"hidden": 64}, {"hidden": [-1]}, {"hidden": ["a"]}, {"name": 3}]
)
def test_bad_models_are_refused_in_words(model):
    with pytest.raises(cf.SettingError, match="^model"):
        cf.run(QUICK, model=model)


def test_a_start_that_failed_may_be_made_again_in_its_folder(tmp_path):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/a.csv").write_text("x,y\n1,0\n")
    sections = {
        "data": {"folder": str(tmp_path / "sites")},
        "run": {"rounds": 1, "executor": "serial"},
    }
    with pytest.raises(cf.DataError, match="at least two values"):
        cf.run(**sections, out=tmp_path / "run")
    rows = [f"{number},{number % 2}" for number in range(20)]
    (tmp_path / "sites/a.csv").write_text("\n".join(["x,y", *rows]))
    assert cf.run(**sections, out=tmp_path / "run").summary["rounds"] == 1


def test_many_clients_that_are_all_evaluated_are_said_before_the_first_round(monkeypatch, caplog):
    monkeypatch.setattr(runner, "MANY_CLIENTS", 2)
    with caplog.at_level("INFO", logger="concordfl"):
        cf.run(QUICK, rounds=1)
        assert "clients are evaluated every" in caplog.text
        assert "run.evaluate_clients = 1000 evaluates a sample" in caplog.text
        caplog.clear()
        cf.run(QUICK, rounds=1, run={"evaluate_clients": 2})
        assert caplog.text == ""
