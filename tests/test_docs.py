"""The docs are true: what is generated is up to date, and what is shown works."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import concordfl as cf
import toys
from concordfl.algorithms import ALGORITHMS
from concordfl.config import Config
from concordfl.engine.plan import Plan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_configuration_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/configuration.md").read_text() == module.page(), (
        "run python docs/make_reference.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_lists_every_method():
    table = (ROOT / "README.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(ALGORITHMS)


def test_run_files_in_the_docs_are_valid():
    shown = [block for page in PAGES for block in blocks(page, "toml")]
    assert len(shown) >= 3
    for block in shown:
        table = tomllib.loads(block)
        table.pop("model", None)  # the reader's own module
        Config.from_table(table)


def test_the_readmes_python_runs(capsys):
    for block in blocks("README.md", "python"):
        exec(block, {})
    assert 0 < float(capsys.readouterr().out) <= 1


def test_the_method_built_up_in_the_docs_is_fedprox():
    names = {"__name__": "docs"}
    exec("".join(blocks("docs/own-algorithm.md", "python")[:4]), names)
    mine = names["MyProx"](mu=0.3)
    theirs = ALGORITHMS["fedprox"](mu=0.3)
    plan = Plan(rounds=3)
    assert toys.digests(toys.experiment(mine, plan=plan)) == toys.digests(
        toys.experiment(theirs, plan=plan)
    )
    with pytest.raises(cf.SettingError, match="mu must be >= 0, got -1"):
        names["MyProx"](mu=-1)
