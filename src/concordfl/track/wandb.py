"""Weights & Biases: figures as history, settings as config. Offline, unless WANDB_MODE says
otherwise: nothing leaves the machine before `wandb sync`.
"""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.files import one_line, remove
from ..engine.observers import Watched
from .figures import Point, plain_text, selected, settings
from .tracker import RUN_ID, Sheet, Tracker


class WandB(Tracker):
    """A run in the project WANDB_PROJECT or `concordfl`, called like the run's folder."""

    name = library = "wandb"

    def open(self, run: Watched) -> Sheet:
        return _History(self.folder_of(run), run)


class _History(Sheet):
    """One offline run, which is written anew rather than continued: much of what a killed one has
    logged was never on disk.
    """

    def __init__(self, folder: Path, run: Watched) -> None:
        self.folder, self.watched = folder, run
        self.mode: Any = os.environ.get("WANDB_MODE") or "offline"
        self.is_final = self.mode != "offline"  # a server takes nothing back
        noted = RUN_ID.read(folder / "run.json")
        self.id = secrets.token_hex(8) if noted is None else noted["run_id"]
        RUN_ID.write(folder / "run.json", {"run_id": self.id})
        self.run: Any = None  # a wandb.Run

    def restart(self, points: Sequence[Point]) -> None:
        if self.run is not None:
            self.run.finish()
        for earlier in (self.folder / "wandb").glob("offline-run-*"):
            with one_line(earlier, "removed"):
                shutil.rmtree(earlier)
        self.run = self._begin()
        self._remove_links()
        # A run that is continued on a server has its earlier rounds already.
        self.add([one for one in points if one.round >= self.run.step])

    def _begin(self) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        return wandb.init(
            dir=str(self.folder),
            project=os.environ.get("WANDB_PROJECT", "concordfl"),
            name=plain_text(self.watched.name),
            id=self.id,
            config=settings(self.watched),
            resume="allow" if self.is_final else None,
            settings=wandb.Settings(
                mode=self.mode,
                silent=True,
                console="off",
                symlink=False,
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                reinit="create_new",  # a run that the user has open is left alone
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def _remove_links(self) -> None:
        """A run folder must not hold any; W&B lays one to its own log in spite of `symlink`."""
        for file in Path(self.run.settings.log_dir).glob("*"):
            if file.is_symlink():
                remove(file)

    def add(self, points: Sequence[Point]) -> None:
        for one in points:
            self.run.log(one.figures, step=one.round, commit=True)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.run.summary.update(selected(summary))
        self.run.finish(exit_code=0 if summary is not None else 1)
