"""The docs are true: what is generated is up to date, and what is shown works."""

import re
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import concordfl as cf
import toys
from concordfl.algorithms import ALGORITHMS
from concordfl.config import Config
from concordfl.engine.plan import Plan
from scripts import load_script

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "maker"), [("configuration.md", "make_reference"), ("travels.md", "make_travels")]
)
def test_what_is_generated_is_up_to_date(page, maker):
    module = load_script(f"docs/{maker}.py")
    assert (ROOT / "docs" / page).read_text() == module.page(), f"run python docs/{maker}.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_lists_every_method():
    table = (ROOT / "README.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(ALGORITHMS)


# The pages of our four papers' methods, and of our own.
PAGE_OF_ITS_OWN = {
    "concord": "concord",
    "fedconceptem": "fedconceptem",
    "fedconcat": "fedconcat",
    "fedconcat-id": "fedconcat",
    "fedgmm": "fedgmm",
    "fedgmm-unsupervised": "fedgmm",
    "fedvc": "fedvc",
    "fedvc-sg": "fedvc",
}


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(PAGE_OF_ITS_OWN)))
def test_every_other_method_has_a_table_of_what_is_its_papers_and_what_is_ours(name):
    section = section_of(name)
    if name in ("local", "centralized"):  # no paper's
        return
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) >= 2
    known = {field.name for field in fields(ALGORITHMS[name])}
    known |= {f"{table}.{key}" for table in ("training", "aggregation") for key in settings(table)}
    for *_, setting in rows[1:]:
        assert set(re.findall(r"`([\w.]+)", setting)) <= known


def settings(table):
    """The names that docs/configuration.md has of a table of run files."""
    page = (ROOT / "docs/configuration.md").read_text()
    section = page.split(f"## [{table}]\n", 1)[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", section, re.MULTILINE)


def section_of(name):
    """What docs/baselines.md has of a method, under the heading that names it."""
    page = (ROOT / "docs/baselines.md").read_text()
    found = [part for part in page.split("\n### ") if f"`{name}`" in part.splitlines()[0]]
    assert len(found) == 1
    return found[0]


def test_run_files_in_the_docs_are_valid(page_folder):
    shown = [block for page in PAGES for block in blocks(page, "toml")]
    assert len(shown) >= 3
    for page in PAGES:
        write_files(page, page_folder)
    for block in shown:
        Config.from_table(tomllib.loads(block))


# --- Python, as a reader would type it ------------------------------------------------------------


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """A new folder to work in, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def file_of(block):
    """The name of the file that a block is, where its first line says so."""
    found = re.match(r"# (\w+\.py)\n", block)
    return found and found[1]


def write_files(page, folder):
    for block in blocks(page, "python"):
        if file_of(block):
            (folder / file_of(block)).write_text(block)


def run_page(page, folder):
    """All Python of a page in order, in one namespace; what it leaves there."""
    names = {"__name__": "__main__"}  # as in a notebook
    write_files(page, folder)
    for block in blocks(page, "python"):
        if not file_of(block):
            exec(compile(block, page.name, "exec"), names)
    return names


WITH_PYTHON = [page for page in PAGES if page.name != "README.md" and blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_as_printed(page, page_folder):
    run_page(page, page_folder)


def test_the_readmes_python_shows_that_learning_together_helps(page_folder, capsys):
    run_page(ROOT / "README.md", page_folder)
    assert "Best for participants: fedavg" in capsys.readouterr().out


def test_the_method_in_the_docs_is_fedprox(page_folder):
    mine = run_page(ROOT / "docs/own-algorithm.md", page_folder)["MyProx"](mu=0.3)
    theirs = ALGORITHMS["fedprox"](mu=0.3)
    plan = Plan(rounds=3)
    assert toys.digests(toys.experiment(mine, plan=plan)) == toys.digests(
        toys.experiment(theirs, plan=plan)
    )
    with pytest.raises(cf.SettingError, match="mu must be >= 0, got -1"):
        type(mine)(mu=-1)


def test_the_method_in_the_architecture_is_fedavg(page_folder):
    mine = run_page(ROOT / "docs/architecture.md", page_folder)["FedAvg"]()
    theirs = ALGORITHMS["fedavg"]()
    assert toys.digests(toys.experiment(mine)) == toys.digests(toys.experiment(theirs))
