"""What `run` may be given in Python: examples, models and settings, by name."""

import functools
import pickle
import subprocess
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from torch import nn

import concordfl as cf
import toy_models
from concordfl import runner
from concordfl.algorithms import FedEM, FedProx
from concordfl.engine import choice
from concordfl.inputs import load_config
from concordfl.study.cells import ConfigHasher

RNG = np.random.default_rng(3)
QUICK = {"rounds": 2, "seed": 1, "run": {"executor": "serial"}}
SMALL = {"model": {"name": "mlp", "hidden": [4]}}


def draw(count, shift):
    x = RNG.normal(size=(count, 3)).astype(np.float32)
    return x, np.where(x[:, 0] > shift, "ill", "well")


CLIENTS = {"berlin": draw(20, 0.0), "aachen": draw(24, 0.3), "celle": draw(16, -0.2)}


def figures(result):
    summary = result.summary
    return summary["parameters_sha256"], summary["states_sha256"], summary["final"]


@pytest.fixture(scope="module")
def from_memory():
    return cf.run(clients=CLIENTS, algorithm="fedprox", **SMALL, **QUICK)


# --- the same run, however it is given ------------------------------------------------------------


def test_memory_files_and_run_files_give_the_same_run_to_the_bit(tmp_path, from_memory):
    for name, (x, y) in CLIENTS.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    data = {"folder": str(tmp_path)}
    from_files = cf.run(data=data, algorithm="fedprox", **SMALL, **QUICK)
    run = {"rounds": 2, "seed": 1, "executor": "serial"}
    table = {"run": run, "data": data, "algorithm": {"name": "fedprox"}, **SMALL}
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps(table))
    assert figures(from_files) == figures(from_memory) == figures(cf.run(file))
    assert from_files.clients() == from_memory.clients()


def test_a_data_frame_and_a_table_are_the_same_run(tmp_path, from_memory):
    frame = pd.concat(
        pd.DataFrame(x, columns=["u", "v", "w"]).assign(city=name, state=y)
        for name, (x, y) in CLIENTS.items()
    )
    columns = {"client": "city", "label": "state"}
    from_frame = cf.run(clients=frame, algorithm="fedprox", **columns, **SMALL, **QUICK)
    frame.to_csv(tmp_path / "all.csv", index=False)
    data = {"table": str(tmp_path / "all.csv"), **columns}
    from_table = cf.run(data=data, algorithm="fedprox", **SMALL, **QUICK)
    assert figures(from_frame) == figures(from_table) == figures(from_memory)


def test_a_run_from_memory_is_as_resumable_as_one_from_files(tmp_path, from_memory):
    def stop(event):
        raise KeyboardInterrupt

    out = tmp_path / "run"
    given = {name: (x.copy(), y) for name, (x, y) in CLIENTS.items()}
    settings = {**SMALL, **QUICK, "run": {"executor": "serial", "checkpoint_seconds": 0.0}}
    with pytest.raises(KeyboardInterrupt):
        cf.run(clients=given, algorithm="fedprox", **settings, out=out, on_round=stop)
    given["berlin"][0][:] = 0  # the folder has its own
    assert figures(cf.resume(out)) == figures(from_memory)
    assert figures(cf.run(out / "config.toml")) == figures(from_memory)
    moved = out.rename(tmp_path / "moved")
    assert figures(cf.resume(moved)) == figures(from_memory)


def test_other_examples_in_the_folder_are_refused(tmp_path):
    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cf.run(clients=CLIENTS, **SMALL, **QUICK, out=tmp_path / "run", on_round=stop)
    cf.run(clients=CLIENTS | {"d": draw(9, 0)}, **SMALL, **QUICK, out=tmp_path / "other")
    (tmp_path / "other/examples.npz").rename(tmp_path / "run/examples.npz")
    with pytest.raises(cf.CheckpointError, match="the run was begun with other data"):
        cf.resume(tmp_path / "run")


def test_settings_of_the_data_section_are_about_the_given_examples(from_memory):
    plain = cf.run(
        clients=CLIENTS, data={"standardise": False}, algorithm="fedprox", **SMALL, **QUICK
    )
    assert figures(plain) != figures(from_memory)
    with pytest.raises(cf.SettingError, match="unknown key 'data.folder'"):
        cf.run(clients=CLIENTS, data={"folder": "."})
    for key in ("given", "memory"):
        with pytest.raises(cf.SettingError) as error:
            cf.run(clients=CLIENTS, data={key: "x"})
        known = "known are drop, limit, standardise, test_limit, without"
        assert str(error.value) == f"unknown key 'data.{key}': {known}"
    with pytest.raises(cf.SettingError, match="client must be given by name beside clients, got"):
        cf.run(clients=CLIENTS, data={"client": "x"})
    with pytest.raises(cf.SettingError, match="unknown key 'data.given'"):
        load_config({"data": {"name": "memory", "given": "x"}})


# --- data frames ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame():
    """Beside the clients' features an identifier, and one that is called as labels often are."""
    parts = [
        pd.DataFrame(x, columns=["u", "v", "y"]).assign(hospital=name, state=y)
        for name, (x, y) in CLIENTS.items()
    ]
    whole = pd.concat(parts, ignore_index=True)
    return whole.assign(id=100 + np.arange(len(whole))[::-1])


def test_columns_of_a_data_frame_are_remembered(tmp_path, frame):
    """The client and the label may be there in what is predicted or joins, in Python and by
    command, from the run itself and from its folder.
    """
    columns = {"client": "hospital", "label": "state", "data": {"drop": ["id"]}}
    result = cf.run(clients=frame, **columns, **SMALL, **QUICK, out=tmp_path / "run")
    assert result.summary["preprocessing"]["features"] == ["u", "v", "y"]
    expected = result.predict_proba(frame[["u", "v", "y"]])
    frame.to_csv(tmp_path / "all.csv", index=False)
    for one in (result, cf.load(tmp_path / "run")):
        assert np.array_equal(one.predict_proba(frame), expected)
        samples = one.finished.read(tmp_path / "all.csv")
        assert samples.features == ("u", "v", "y")
        assert set(samples.labels.names) == {"ill", "well"}


def test_a_feature_called_as_the_label_would_be_can_be_read(tmp_path, frame):
    columns = ["u", "v", "y"]
    clients = {name: (part[columns], part.state) for name, part in frame.groupby("hospital")}
    result = cf.run(clients=clients, **SMALL, **QUICK)
    frame[columns].to_csv(tmp_path / "new.csv", index=False)
    samples = result.finished.read(tmp_path / "new.csv")
    assert (samples.features, samples.labels) == (("u", "v", "y"), None)


def test_targets_of_a_data_frame_keep_their_name(frame):
    prices = frame.drop(columns=["state", "id"]).rename(columns={"y": "price"})
    result = cf.run(clients=prices, client="hospital", label="price", **SMALL, **QUICK)
    assert result.summary["preprocessing"]["targets"] == ["price"]


def test_names_of_columns_beside_the_features_change_no_hash(frame):
    """Results from before they were remembered are still found."""
    settings = load_config(clients=frame, client="hospital", label="state", data={"drop": ["id"]})
    assert settings.to_table()["data"]["label"] == "state"
    forgotten = replace(settings.data, client=None, label=None, drop=None)
    assert ConfigHasher()(settings) == ConfigHasher()(replace(settings, data=forgotten))


def test_notices_are_the_same_after_a_resume(tmp_path, frame):
    result = cf.run(
        clients=frame, client="hospital", label="state", **SMALL, **QUICK, out=tmp_path / "run"
    )
    assert any("identifier" in one["text"] for one in result.summary["warnings"])
    (tmp_path / "run/summary.json").unlink()
    assert cf.resume(tmp_path / "run").summary["warnings"] == result.summary["warnings"]


# --- settings by name -----------------------------------------------------------------------------


def test_short_settings_are_those_of_their_sections():
    short = load_config(rounds=3, seed=4, lr=0.5, epochs=2, batch_size=7)
    run, training = {"rounds": 3, "seed": 4}, {"lr": 0.5, "epochs": 2, "batch_size": 7}
    assert (
        short
        == load_config(run=run, training=training)
        == load_config({"run": run, "training": training})
    )
    assert load_config({"run": {"rounds": 9, "seed": 4}}, rounds=3).run.rounds == 3


MOON = {
    "algorithm": {"name": "moon", "mu": 5.0, "training": {"lr": 0.5}},
    "training": {"lr": 0.2},
    "model": {"name": "mlp", "hidden": [7]},
}


def test_another_method_by_name_has_its_own_settings_and_not_those_of_the_one_it_replaces():
    found = load_config(MOON, algorithm="fedprox")
    assert (found.algorithm, found.training.lr) == (FedProx(), 0.2)
    own = {"fedprox": {"mu": 0.7, "training": {"lr": 0.3}}, "ifca": {}}
    found = load_config({**MOON, "compare": own}, algorithm="fedprox")
    assert (found.algorithm, found.training.lr) == (FedProx(mu=0.7), 0.3)
    assert load_config({**MOON, "compare": own}, algorithm="fedprox", lr=0.1).training.lr == 0.1
    for same in ("moon", {"name": "moon"}, {"temperature": 0.7}):
        found = load_config(MOON, algorithm=same)
        assert (found.algorithm.mu, found.training.lr) == (5.0, 0.5)


def test_a_table_of_another_method_replaces_the_section():
    compared = {"compare": {"fedprox": {"mu": 0.7}}}
    found = load_config({**MOON, **compared}, algorithm={"name": "fedprox", "mu": 0.1})
    assert (found.algorithm, found.training.lr) == (FedProx(mu=0.1), 0.2)


def test_another_model_has_no_options_of_the_one_it_replaces():
    assert load_config(MOON, model="cnn").model.options == {}
    assert load_config({"model": {"hidden": [7]}}, model={"name": "cnn"}).model.options == {}
    for same in ("mlp", {"name": "mlp"}):
        assert load_config(MOON, model=same).model.options == {"hidden": [7]}
    assert load_config(MOON, model={"hidden": [3]}).model.options == {"hidden": [3]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ruonds": 3}, "unknown keyword 'ruonds': did you mean 'rounds'?"),
        ({"observe": print}, "unknown keyword 'observe'"),
        ({"traning": {}}, "unknown keyword 'traning': did you mean 'training'?"),
        ({"rounds": 3, "run": {"rounds": 3}}, "rounds must be given once, got it by name and in"),
        ({"rounds": 0}, "run.rounds must be >= 1, got 0"),
        ({"training": 3}, "training must be a dict of settings, got 3"),
        ({"client": "site"}, "client and label must be columns of `clients`, got no clients"),
        ({"algorithm": cf.algorithms.FedProx}, "must be an object, got the class FedProx: call it"),
        ({"algorithm": 3}, "algorithm must be a name, a table or an Algorithm, got 3"),
        ({"model": 3}, "model must be a name, a table, a torch.nn.Module or a function"),
        ({"source": 3}, "a run must be a file, a dict of sections or settings by name, got 3"),
        ({"source": load_config(), "seed": 3}, "a Config is complete and must be given alone"),
        ({"source": {"run": 3}, "seed": 1}, "[run] must be a table, got 3"),
        (
            {"source": {"algorithm": "fedprox"}, "algorithm": "fedavg"},
            "[algorithm] must be a table, got 'fedprox'",
        ),
        (
            {"source": {"compare": {"fedprox": 3}}, "algorithm": "fedprox"},
            "[compare.fedprox] must be a table, got 3",
        ),
        ({"on_round": 5}, "on_round must be a function or a list of functions, got 5"),
        ({"on_round": [print, 5]}, "on_round must be a function or a list of functions, got 5"),
        ({"until": "3"}, "until must be a round >= 1, got '3'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_misspelt_or_given_twice_is_refused(settings, message):
    with pytest.raises(cf.SettingError) as error:
        cf.run(**settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_round_is_told_to_all_who_asked():
    told, again = [], []
    cf.run(clients=CLIENTS, **SMALL, **QUICK, on_round=[told.append, again.append])
    assert told == again
    assert [event.turn.round for event in told] == [1, 2]
    assert [event.record is None for event in told] == [True, False]


def stop_at(round):
    def observe(event):
        if event.turn.round == round:
            raise cf.Stop

    return observe


@pytest.mark.parametrize("evaluate_every", [1, 5])
def test_a_watcher_may_end_the_run_with_any_round(tmp_path, evaluate_every):
    run = {"executor": "serial", "evaluate_every": evaluate_every}
    settings = {"clients": CLIENTS, **SMALL, "seed": 1, "run": run}
    short = cf.run(**settings, rounds=2)
    for out in (None, tmp_path / "run"):
        stopped = cf.run(**settings, rounds=9, out=out, on_round=stop_at(2))
        assert figures(stopped) == figures(short)
        assert (stopped.summary["rounds"], stopped.summary["stopped_early"]) == (2, True)
        accuracies = [
            [row["accuracy"] for row in one.clients().values()] for one in (stopped, short)
        ]
        assert sorted(accuracies[0]) == sorted(accuracies[1])
        assert len(stopped.records) == len(short.records)
    again = cf.resume(tmp_path / "run")  # it is finished
    assert figures(again) == figures(short)


@pytest.mark.parametrize("evaluate_every", [1, 5])
def test_a_watcher_may_end_a_run_in_the_round_up_to_which_it_is_played(tmp_path, evaluate_every):
    run = {"executor": "serial", "evaluate_every": evaluate_every}
    settings = {"clients": CLIENTS, **SMALL, "seed": 1, "run": run}
    short = cf.run(**settings, rounds=5)
    for out in (None, tmp_path / "run"):
        stopped = cf.run(**settings, rounds=9, until=5, out=out, on_round=stop_at(5))
        assert figures(stopped) == figures(short)
        assert stopped.summary["stopped_early"]
    assert figures(cf.resume(tmp_path / "run")) == figures(short)  # it is finished


def test_a_run_stopped_early_has_the_thresholds_of_its_last_round():
    settings = {"clients": CLIENTS, "algorithm": "fedgmm", "seed": 1, "epochs": 1}
    run = {"executor": "serial", "evaluate_every": 1}
    short = cf.run(**settings, rounds=1, run=run).summary
    ends = short["rounds"]
    stopped = cf.run(**settings, rounds=2, run=run, on_round=stop_at(ends)).summary
    assert stopped["thresholds"] == short["thresholds"] is not None
    with pytest.raises(cf.SettingError, match="before there is something to predict with, got"):
        cf.run(**settings, rounds=2, run=run, on_round=stop_at(1))


# --- models ---------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


def initial(**settings):
    """The parameters with which a run begins."""
    config = load_config(clients=CLIENTS, **settings)
    return runner.make_model(config, runner.make_federation(config))


def test_a_module_starts_as_it_is_and_is_left_as_it_was():
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    start = initial(model=module, seed=5).init(5)
    cf.run(clients=CLIENTS, model=module, **QUICK)
    for name, value in before.items():
        assert torch.equal(start[name], value)
        assert torch.equal(module.state_dict()[name], value)


def test_further_models_of_a_mixture_start_differently():
    model = initial(model=Net(), algorithm=FedEM(num_models=3))
    starts = [model.init(0, index)["head.weight"] for index in range(3)]
    assert len({str(start) for start in starts}) == 3
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.init(0, 2)["head.weight"], starts[2])


def test_a_module_that_cannot_be_drawn_anew_is_refused_for_several_models():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 2))

        def forward(self, x):
            return x @ self.weight

    cf.run(clients=CLIENTS, model=Bare(), **QUICK)
    with pytest.raises(
        cf.SettingError, match="must be given as a function for a method of several"
    ):
        cf.run(clients=CLIENTS, model=Bare(), algorithm="fedem", **QUICK)


@pytest.mark.parametrize(
    "model",
    [
        Net,
        lambda: Net().train(),
        lambda input_shape, num_classes: Net(),
        functools.partial(lambda wide, input_shape, num_classes: Net(), True),
    ],
    ids=["class", "without arguments", "with shape and classes", "partial"],
)
def test_functions_are_called_anew_and_drawn_by_the_seed(model):
    runs = [cf.run(clients=CLIENTS, model=model, **QUICK) for _ in range(2)]
    assert figures(runs[0]) == figures(runs[1])
    other = cf.run(clients=CLIENTS, model=model, **QUICK | {"seed": 2})
    assert figures(other) != figures(runs[0])


def test_an_importable_function_is_named_and_resumed_with_trust(tmp_path):
    images = {name: (RNG.normal(size=(20, 64)), np.arange(20) % 2) for name in "ab"}
    out = tmp_path / "run"
    result = cf.run(clients=images, model=toy_models.narrow_enough, **QUICK, out=out)
    table = tomllib.loads((out / "config.toml").read_text())
    assert table["model"] == {"name": "toy_models:narrow_enough"}
    (out / "summary.json").unlink()
    assert figures(cf.resume(out, trust=True)) == figures(result)


def test_another_module_is_given_again_to_go_on(tmp_path):
    module, out = Net(), tmp_path / "run"
    result = cf.run(clients=CLIENTS, model=module, **QUICK, out=out)
    (out / "summary.json").unlink()
    with pytest.raises(cf.SettingError, match=r"got '<Net>', which .* cf.resume\(folder, model="):
        cf.resume(out, trust=True)
    with pytest.raises(cf.CheckpointError, match="the run was begun with another model"):
        cf.resume(out, model=Net())
    with pytest.raises(cf.SettingError, match="by the model that it began with, .*<Net>"):
        cf.resume(out, model=nn.Linear(3, 2))
    assert figures(cf.resume(out, model=module)) == figures(result)


def test_models_that_do_not_fit_are_refused_in_one_line():
    with pytest.raises(cf.SettingError, match="model '<Linear>' must give 2 outputs, .*got"):
        cf.run(clients=CLIENTS, model=nn.Linear(3, 5))
    with pytest.raises(cf.SettingError, match="model '<lambda>' must return a torch.nn.Module"):
        cf.run(clients=CLIENTS, model=lambda: 5)


# --- worker processes -----------------------------------------------------------------------------


def choose(model, **run):
    config = load_config(clients=CLIENTS, model=model, run=run)
    federation = runner.make_federation(config)
    network = runner.make_model(config, federation)
    setup = runner.make_setup(config, network, runner.make_objective(config, federation))
    return choice.choose(setup, federation, config.run)


def test_what_cannot_be_pickled_stays_in_one_process(monkeypatch):
    monkeypatch.setattr(choice, "available_cores", lambda: 4)
    long = choose(lambda: Net().train(), rounds=10**6)
    assert long.name == "serial"
    assert long.reason == "worker processes cannot be sent a model that cannot be pickled"
    assert choose(toy_models.linear, rounds=10**6).name == "processes"
    with pytest.raises(cf.SettingError, match="'auto' with a model that cannot be pickled, got"):
        choose(lambda: Net().train(), executor="processes")


def test_a_notebook_stays_in_one_process():
    """`python -` has no file either that workers could run again."""
    script = (
        "import concordfl as cf, numpy as np\n"
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self): super().__init__(3, 2)\n"
        "clients = {'a': (np.eye(3), [0, 1, 1])}\n"
        "settings = dict(clients=clients, model=Net, scenario={'split': [0.4, 0, 0.6]}, rounds=1)\n"
        "print(cf.run(**settings).summary['executor'])\n"
        "try: cf.run(**settings, run={'executor': 'processes'})\n"
        "except cf.SettingError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "serial"
    assert second.startswith(
        "run.executor must be 'serial' or 'auto' with what is defined in a notebook or in the "
    )
