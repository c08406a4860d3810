"""The dependency rule, read from the imports; and that the public names are what is importable."""

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

import concordfl

ROOT = Path(concordfl.__file__).parent

# A part of the package -> the parts it may import. Parts that are not listed may import all.
ALLOWED = {
    "core": {"metrics"},
    "metrics": set(),
    "toolbox": {"core"},
    "algorithms": {"core", "toolbox"},
    "models": {"core"},
    "data": {"core"},
    "scenarios": {"core", "data"},
    "engine": {"core", "data", "metrics"},
    "report": {"core", "engine.records", "metrics"},
    "track": {"core", "engine"},
    "deploy": {
        *("core", "algorithms", "data", "metrics", "models", "scenarios", "engine"),
        *("assemble", "config"),
    },
    "diagnosis": {
        *("core", "toolbox", "data", "scenarios", "engine", "assemble", "config", "inputs"),
        "by_name",
    },
    "watch": {"core", "engine", "metrics", "report", "config"},
}
# A library -> the only files that may import it.
RESERVED = {
    "flwr": ["engine/flower", "bench/programs"],
    "pfl": ["bench/programs"],
    "cryptography": ["federate/certificates.py"],
    "ray": ["engine/executors/ray"],
    "plotly": ["report"],
    "matplotlib": ["report"],
    "tensorboard": ["track/tensorboard.py"],
    "mlflow": ["track/mlflow.py"],
    "wandb": ["track/wandb.py"],
}


def imports(path, root=ROOT):
    """Absolute names of all modules that a file imports."""
    package = ["concordfl", *path.relative_to(root).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{name.name}" for name in node.names)


def violations(root=ROOT):
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        # The two apps of Flower put a run together, as `runner` does: they may import all.
        part = "engine.flower" if relative.parts[:2] == ("engine", "flower") else relative.parts[0]
        for name in imports(path, root):
            line = f"{relative} imports {name}"
            if name.split(".")[0] in RESERVED and not any(
                str(relative).startswith(own) for own in RESERVED[name.split(".")[0]]
            ):
                found.append(line)
            if part not in ALLOWED or not name.startswith("concordfl."):
                continue
            if name.startswith("concordfl.engine.flower"):
                found.append(line)
            target = name.removeprefix("concordfl.")
            allowed = {part, *ALLOWED[part]}
            if not any(target == known or target.startswith(known + ".") for known in allowed):
                found.append(line)
    return found


def test_the_dependency_rule_is_kept():
    assert violations() == []


def test_the_rule_would_notice(tmp_path):
    for part, line in {
        "core": "from ..data import Federation",
        "algorithms": "from concordfl.engine.plan import Plan",
        "engine": "from ..algorithms import FedAvg",
        "data": "import flwr",
        "metrics": "import plotly.graph_objects",
        "scenarios": "from .. import runner",
        "deploy": "from ..cli import main",
        "engine/executors": "from ..flower import host",
    }.items():
        file = tmp_path / part / "module.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line)
        assert len(violations(tmp_path)) == 1, line
        file.unlink()


def test_public_names_are_what_is_importable():
    for name in concordfl.__all__:
        assert getattr(concordfl, name) is not None
    public = {
        name
        for name, value in vars(concordfl).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    } | {"algorithms", "track", "tree"}
    assert public == set(concordfl.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        concordfl.nothing  # noqa: B018
    assert concordfl.__all__ == sorted(concordfl.__all__)


def test_an_algorithm_can_be_deleted():
    """No module but the registry knows a method that others do not build on; what is measured for a
    paper's figures may know the paper's own.
    """
    for path in ROOT.rglob("*.py"):
        if path.parent.name == "algorithms" or path.name.startswith("measures_"):
            continue
        for name in imports(path):
            assert not name.startswith("concordfl.algorithms.") or name in {
                "concordfl.algorithms.ALGORITHMS",
                "concordfl.algorithms.ALIASES",
            }, (path, name)


def test_a_run_does_not_wait_for_scipy():
    """Its statistics take longer to import than everything here; what needs them imports them."""
    code = "import sys, concordfl; concordfl.run; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
