"""`concordfl resume`."""

from .. import runner
from .options import FolderArgument, TrustOption
from .results import show_run


def resume(folder: FolderArgument, trust: TrustOption = False) -> None:
    """Go on with a run where it stopped, bit for bit."""
    show_run(
        folder,
        lambda observe: runner.resume(folder, on_round=observe, trust=trust),
        title=folder.name,
        trust=trust,
    )
