"""Which revision of concordfl is running, where it runs from a source checkout."""

import functools
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parent
GIT_TIMEOUT_SECONDS = 5.0


@functools.cache
def code_revision() -> str | None:
    """The short git revision of the code that runs, with "+" if its files were changed since.

    None where it is not known: concordfl is installed and not a checkout, or there is no git.
    """
    return revision_of(PACKAGE)


def revision_of(folder: Path) -> str | None:
    # An installed package may lie inside somebody else's checkout, which does not track it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = _git(folder, "rev-parse", "--short", "HEAD")
    changes = _git(folder, "--no-optional-locks", "status", "--porcelain", "--", ".")
    return None if revision is None else revision + ("+" if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git answers; None if it cannot."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
