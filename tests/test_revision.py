"""The revision that computed a result, where it can be known."""

import shutil
import subprocess

import pytest

from concordfl.revision import code_revision, revision_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    return folder


def test_a_checkout_has_a_revision(package):
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "first")
    revision = git(package, "rev-parse", "--short", "HEAD")
    assert revision_of(package) == revision
    (package.parent / "results").write_text("not code")
    assert revision_of(package) == revision
    (package / "__init__.py").write_text("changed = 1")
    assert revision_of(package) == revision + "+"


def test_an_installed_package_has_none(package, tmp_path, monkeypatch):
    """Even inside somebody's checkout; nor where there is no git."""
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-q", "-m", "first")
    assert revision_of(package) is None
    assert revision_of(tmp_path / "missing") is None
    monkeypatch.setenv("PATH", "")
    assert revision_of(package) is None


def test_it_never_fails():
    assert code_revision() is None or code_revision().rstrip("+").isalnum()
