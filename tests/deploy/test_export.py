"""Models that were exported predict the same where there is no concordfl."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import concordfl as cf
from command import concordfl
from concordfl.deploy import export

# what is run in a process in which concordfl cannot be imported
STRANGER = """
import sys
sys.modules["concordfl"] = None
import numpy as np
for file, data in (pair.split("=") for pair in sys.argv[1:]):
    x = np.load(data)["x"]
    if file.endswith(".onnx"):
        import onnxruntime
        session = onnxruntime.InferenceSession(file)
        def predict(x): return session.run(["probabilities"], {"examples": x})[0]
    else:
        import torch
        program = torch.export.load(file).module()
        def predict(x): return program(torch.from_numpy(x)).numpy()
    np.savez(file + ".npz", all=predict(x), one=predict(x[:1]))
assert not any(name.startswith("concordfl.") for name in sys.modules)
"""


def table(rng, rows):
    """Rows of three features in units of very different size, with missing ones; two classes."""
    x = rng.normal(size=(rows, 3)) * [1, 100, 1e-3] + [5, -300, 0]
    y = np.where((x[:, 0] > 5) ^ (x[:, 1] > -300), "sick", "well")
    x[rng.random(x.shape) < 0.05] = np.nan
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of three kinds: one network, several with Gaussians, and one on images."""
    path, rng = tmp_path_factory.mktemp("export"), np.random.default_rng(0)
    clients = {name: table(rng, 40) for name in "abc"}
    common = {"run": {"executor": "serial", "rounds": 2}, "lr": 0.1}
    for name in ("fedavg", "fedgmm"):
        cf.run(clients=clients, algorithm=name, **common, out=path / name)
    colours = {
        name: (rng.integers(256, size=(12, 16, 16, 3), dtype=np.uint8), np.arange(12) % 2)
        for name in "ab"
    }
    cf.run(clients=colours, model="cnn", algorithm="fedavg", **common, out=path / "images")
    x, _ = table(rng, 30)
    np.savez(path / "rows.npz", x=x)
    images = rng.integers(256, size=(20, 16, 16, 3), dtype=np.uint8)
    np.savez(path / "pictures.npz", x=images)
    return path


def test_graphs_predict_the_same_where_there_is_no_concordfl(folder):
    """Of any number of examples, also of one."""
    exported = {  # by file: the run, the client, the examples
        "fedavg.pt2": ("fedavg", None, "rows.npz"),
        "fedgmm.onnx": ("fedgmm", "b", "rows.npz"),
        "images.onnx": ("images", None, "pictures.npz"),
    }
    for file, (name, client, _) in exported.items():
        cf.load(folder / name).export(folder / file, client=client)
    pairs = [f"{file}={data}" for file, (*_, data) in exported.items()]
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *pairs], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for file, (name, client, data) in exported.items():
        expected = cf.load(folder / name).predict_proba(np.load(folder / data)["x"], client=client)
        found = np.load(folder / f"{file}.npz")
        assert np.allclose(found["all"], expected, rtol=1e-4, atol=1e-6)
        assert np.allclose(found["one"], expected[:1], rtol=1e-4, atol=1e-6)


def test_parameters_have_their_names_and_say_what_they_are_of(folder, tmp_path):
    done = concordfl(folder, "export", "fedavg", "-o", tmp_path / "model.safetensors")
    assert (done.returncode, done.stdout) == (0, f"Written to {tmp_path / 'model.safetensors'}\n")
    tensors = load_file(tmp_path / "model.safetensors")
    assert {
        "prepare.mean",
        "prepare.deviation",
        "predictor.network.head.weight",
        "predictor.network.head.bias",
    } < set(tensors)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        said = {
            name: json.loads(value) for name, value in file.metadata().items() if name != "format"
        }
    assert said["classes"] == ["sick", "well"]
    assert (said["algorithm"], said["client"]) == ("fedavg", None)
    result = cf.load(folder / "fedavg")
    module, fresh = result.model(), result.model()
    for parameter in fresh.parameters():
        parameter.zero_()
    fresh.load_state_dict(tensors)
    x = torch.from_numpy(np.load(folder / "rows.npz")["x"])
    assert torch.equal(fresh(x), module(x))


def test_a_graph_of_values_says_what_it_is_of(tmp_path):
    import onnx
    import onnxruntime

    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    clients = {id: (x[part::2], 50.5 + 7 * x[part::2, 0]) for part, id in enumerate("ab")}
    result = cf.run(clients=clients, model="linear", rounds=2, run={"executor": "serial"})
    file = result.export(tmp_path / "model.onnx", client="a")
    said = {one.key: json.loads(one.value) for one in onnx.load(file).metadata_props}
    assert (said["predicts"], said["client"]) == ("regression", "a")
    (found,) = onnxruntime.InferenceSession(file).run(["predictions"], {"examples": x})
    assert np.allclose(found, result.predict(x, client="a"), rtol=1e-5)


def test_the_same_run_gives_the_same_file(folder, tmp_path):
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for file in files:
        cf.load(folder / "fedgmm").export(file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_cannot_be_exported(folder, tmp_path, monkeypatch):
    refused = concordfl(folder, "export", "fedavg", "-o", tmp_path / "model.pt")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "a model must be exported as .safetensors, .onnx, .pt2, got" in refused.stderr
    unknown = concordfl(folder, "export", "fedavg", "-o", tmp_path / "m.onnx", "--client", "d")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "client must be of the run, or have adapted to it, got 'd': known are a, b, c" in (
        unknown.stderr
    )
    monkeypatch.setattr(export, "ONNX_PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(cf.SettingError, match=r"needs no_such_package: `pip install concordfl\["):
        cf.load(folder / "fedavg").export(tmp_path / "m.onnx")


class Undecided(torch.nn.Module):
    """What it computes depends on its inputs' values: no graph can say it."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x) if float(x.sum()) > 0 else -self.head(x)


def test_a_network_that_is_no_graph_is_one_line(tmp_path):
    rng = np.random.default_rng(0)
    result = cf.run(
        clients={name: table(rng, 20) for name in "ab"},
        model=Undecided(),
        run={"executor": "serial", "rounds": 1},
    )
    with pytest.raises(cf.SettingError, match="must be one that torch can turn into a torch prog"):
        result.export(tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()
