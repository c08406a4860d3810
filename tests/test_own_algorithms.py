"""Methods that are not ours: as objects and by name, registered or not."""

import importlib
import json
import re
import sys
from dataclasses import dataclass

import pytest

import concordfl as cf
import toys
from command import concordfl
from concordfl.algorithms import FedProx
from concordfl.by_name import algorithm_name, algorithm_reference
from concordfl.config import Config, own_code
from concordfl.study import kept_results
from concordfl.study.cells import ConfigHasher
from concordfl.study.compare import can_be_kept

QUICK = {
    "run": {"rounds": 2, "executor": "serial"},
    "scenario": {"clients": 3},
    "data": {"name": "digits", "limit": 100},
}
OWN_METHOD = """
from dataclasses import dataclass
from concordfl.algorithms import FedProx

@dataclass(frozen=True)
class Prox(FedProx):
    pass
"""


@dataclass(frozen=True)
class MyProx(FedProx):
    """Registered nowhere."""


def local_class():
    @dataclass(frozen=True)
    class Hidden(FedProx):
        """Nothing outside this function can import it."""

    return Hidden


def stop(event):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def theirs():
    return cf.run(QUICK, algorithm={"name": "fedprox", "mu": 0.3}).summary


def test_an_unregistered_object_runs_under_the_name_of_its_class(theirs):
    for kind in (MyProx, local_class()):
        mine = cf.run(QUICK, algorithm=kind(mu=0.3)).summary
        assert mine["algorithm"] == kind.__name__
        assert mine["parameters_sha256"] == theirs["parameters_sha256"]


def test_objects_names_and_tables_of_registered_methods_are_the_same_run(theirs):
    for algorithm in (FedProx(mu=0.3), {"name": "fedprox", "mu": 0.3}):
        summary = cf.run(QUICK, algorithm=algorithm).summary
        assert summary["algorithm"] == "fedprox"
        assert summary["parameters_sha256"] == theirs["parameters_sha256"]
    assert cf.run(QUICK, algorithm="fedavg").summary["algorithm"] == "fedavg"


def test_every_method_has_a_name_and_a_reference():
    assert algorithm_name(FedProx()) == algorithm_reference(FedProx()) == "fedprox"
    assert algorithm_name(toys.Toy()) == "Toy"
    assert algorithm_reference(toys.Toy()) == "toys:Toy"
    assert algorithm_reference(local_class()()) == "<Hidden>"


def test_a_run_file_names_a_class_of_the_users_own(tmp_path, monkeypatch, theirs):
    (tmp_path / "my_methods.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    table = QUICK | {"algorithm": {"name": "my_methods:Prox", "mu": 0.3}}
    config = Config.from_table(table)
    assert Config.from_table(config.to_table()) == config
    assert own_code(config.to_table()) == {"algorithm.name": "my_methods:Prox"}
    result = cf.run(table, out=tmp_path / "run")
    assert result.summary["algorithm"] == "Prox"
    assert result.summary["parameters_sha256"] == theirs["parameters_sha256"]
    with pytest.raises(cf.SettingError, match="unless it is trusted"):
        cf.resume(tmp_path / "run")
    assert cf.resume(tmp_path / "run", trust=True).summary == result.summary
    forget("my_methods")  # which the documentation has too


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toys:nothing", "algorithm.name must be importable as `package.module:function`"),
        ("toys:federation", "algorithm.name must name a class of concordfl.Algorithm, got 'toys:"),
        ("concordfl:Algorithm", "a class that defines init_server, got 'concordfl:A"),
        ("my methods:Prox", "algorithm.name must be written as `package.module:function`"),
        ("<MyProx>", r"got '<MyProx>', which was given in Python: give it again, as in cf.resume"),
        ("fedproxx", "algorithm.name must be a known name, got 'fedproxx': did you mean 'fedprox'"),
    ],
)
def test_names_that_lead_to_no_method_are_refused_in_one_line(name, message):
    with pytest.raises(cf.SettingError, match=message):
        Config.from_table({"algorithm": {"name": name}})


def test_settings_of_own_classes_are_checked_like_ours():
    table = {"name": "concordfl.algorithms:FedProx", "nu": 1.0}
    with pytest.raises(cf.SettingError, match="unknown key 'algorithm.nu': did you mean 'mu'"):
        Config.from_table({"algorithm": table})


def test_an_object_that_cannot_be_imported_is_given_again_to_go_on(tmp_path, theirs):
    method = local_class()(mu=0.3)
    with pytest.raises(KeyboardInterrupt):
        cf.run(QUICK, algorithm=method, out=tmp_path / "run", on_round=stop)
    with pytest.raises(cf.SettingError, match=r"give it again, as in cf.resume\(folder, algorithm"):
        cf.resume(tmp_path / "run", trust=True)
    with pytest.raises(cf.SettingError, match="by the algorithm that it began with, .*0.3"):
        cf.resume(tmp_path / "run", algorithm=local_class()(mu=0.2))
    done = cf.resume(tmp_path / "run", algorithm=method)
    assert done.summary["parameters_sha256"] == theirs["parameters_sha256"]


def test_a_folder_that_compares_own_code_must_be_trusted(tmp_path):
    cf.run(QUICK, out=tmp_path / "run")
    file = tmp_path / "run/config.toml"
    file.write_text(file.read_text() + '[compare."toys:MyProx"]\n')
    with pytest.raises(cf.SettingError, match="got compare.toys:MyProx = 'toys:MyProx'"):
        cf.resume(tmp_path / "run")


def test_kept_results_import_no_method(tmp_path):
    """A results file lies beside the run file, and may be somebody else's."""
    run_file = tmp_path / "run.toml"
    run_file.write_text("[run]\nrounds = 2\n")
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    line = {
        "format": 1,
        "seed": 0,
        "measure": "anything",
        "config_hash": "0" * 16,
        "revision": None,
        "date": None,
        "figures": {},
    }
    lines = [
        line | {"method": "stranger:Method", "settings": {}},
        line | {"method": "fedavg", "settings": {"algorithm": {"name": "stranger:Method"}}},
        line | {"method": "fedavg", "settings": {"compare": {"stranger:Method": {}}}},
    ]
    kept = "".join(json.dumps(one) + "\n" for one in lines)
    kept_results.results_file(run_file).write_text(kept)
    found = kept_results.read(run_file, ConfigHasher())
    assert found.ignored == dict.fromkeys(
        (1, 2, 3), "it names a method that is not one of ours, nor its run file's"
    )


def test_kept_results_import_no_model_and_no_embedding(tmp_path, monkeypatch):
    """Their source is part of the hash, and nobody has trusted them."""
    monkeypatch.syspath_prepend(tmp_path)
    run_file = tmp_path / "run.toml"
    run_file.write_text("[run]\nrounds = 2\n")
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    line = {
        "format": 1,
        "seed": 0,
        "measure": "anything",
        "config_hash": "0" * 16,
        "revision": None,
        "date": None,
        "figures": {},
    }
    lines = [
        line | {"method": "fedavg", "settings": {"model": {"name": "stranger:net"}}},
        line | {"method": "fedgmm", "settings": {"compare.fedgmm.embedding": "stranger:encoder"}},
    ]
    kept = "".join(json.dumps(one) + "\n" for one in lines)
    kept_results.results_file(run_file).write_text(kept)
    found = kept_results.read(run_file, ConfigHasher())
    assert found.ignored == dict.fromkeys(
        (1, 2), "it names code that is not ours, of which no results are kept"
    )
    assert "stranger" not in sys.modules


@pytest.mark.parametrize(
    "own",
    [
        {"algorithm": {"name": "edited_code:Prox"}},
        {"model": {"name": "edited_code:net"}},
        {"algorithm": {"name": "fedgmm", "embedding": "edited_code:encoder"}},
        {"model": {"name": "reexporting:net"}},
    ],
)
def test_edited_code_is_another_configuration(tmp_path, monkeypatch, own):
    monkeypatch.syspath_prepend(tmp_path)
    code = OWN_METHOD + "def net(): ...\ndef encoder(): ...\n"
    (tmp_path / "edited_code.py").write_text(code)
    (tmp_path / "reexporting.py").write_text("from edited_code import net\n")
    ours = ConfigHasher()(Config.from_table(QUICK))

    def hashed():
        return ConfigHasher()(Config.from_table(QUICK | own))

    before = hashed()
    assert hashed() == before
    (tmp_path / "edited_code.py").write_text(code + "# edited\n")
    assert hashed() == before  # the code that this process has is still the one before
    forget("edited_code", "reexporting")
    after = hashed()
    forget("edited_code", "reexporting")
    assert after != before
    assert ConfigHasher()(Config.from_table(QUICK)) == ours


def forget(*modules):
    """As in a new process."""
    importlib.invalidate_caches()
    for name in modules:
        sys.modules.pop(name, None)


def test_a_comparison_runs_edited_code_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def compared(code):
        forget("compared_code")
        (tmp_path / "compared_code.py").write_text(code)
        found = cf.compare(QUICK, algorithms=["compared_code:Prox"], out=tmp_path / "out")
        return found["compared_code:Prox", 0].summary["parameters_sha256"]

    before = compared(OWN_METHOD)
    assert compared(OWN_METHOD) == before
    assert len([*(tmp_path / "out").iterdir()]) == 1
    assert compared(OWN_METHOD.replace("pass", "mu: float = 100.0 / 1")) != before
    no_training = (
        OWN_METHOD + "    def local_loss(self, *args): return 0 * super().local_loss(*args)"
    )
    assert compared(no_training) != before
    assert len([*(tmp_path / "out").iterdir()]) == 3
    forget("compared_code")


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        ({}, True),
        ({"model": {"name": "toy_models:narrow_enough"}}, False),
        ({"algorithm": {"name": "fedgmm", "embedding": "toy_models:counting_encoder"}}, False),
        ({"algorithm": {"name": "toys:Toy"}}, False),
    ],
)
def test_results_of_own_code_are_not_kept(own, kept):
    assert can_be_kept(Config.from_table(own)) == kept


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """A run file with settings of a method in a package of the user's own."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/methods.py").write_text(OWN_METHOD)
    (tmp_path / "run.toml").write_text(
        '[run]\nrounds = 1\nexecutor = "serial"\n[scenario]\nclients = 2\n'
        '[data]\nname = "digits"\nlimit = 60\n[compare."my_package.methods:Prox"]\nmu = 0.5\n'
    )
    yield tmp_path / "run.toml"
    for name in ("my_package.methods", "my_package"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ((), {"0.5"}),
        (("--set", "algorithm.mu=0.25"), {"0.25"}),
        (("--set", "compare.my_package.methods:Prox.mu=0.25"), {"0.25"}),
        (("--vary", "compare.my_package.methods:Prox.mu=1.0,0.25"), {"1.0", "0.25"}),
    ],
)
def test_own_methods_are_compared_by_name_on_the_command_line(run_file, options, values):
    command = ("compare", "run.toml", "--algorithms", "fedavg,my_package.methods:Prox", *options)
    done = concordfl(run_file.parent, *command)
    assert done.returncode == 0, done.stderr
    assert "my_package.methods:Prox" in done.stdout
    cells = (run_file.parent / "runs/compare-run").glob("Prox-seed0-*")
    found = {re.search(r"mu = (.*)", (cell / "config.toml").read_text())[1] for cell in cells}
    assert found == values
