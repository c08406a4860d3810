"""`concordfl resume`."""

from .. import runner
from .options import FolderArgument, TrackOption, TrustOption, trackers
from .results import show_run


def resume(folder: FolderArgument, trust: TrustOption = False, track: TrackOption = None) -> None:
    """Go on with a run where it stopped, bit for bit."""
    tracked = trackers(track)
    show_run(
        folder,
        lambda observe: runner.resume(folder, on_round=[observe, *tracked], trust=trust),
        title=folder.name,
        trust=trust,
        track=track,
    )
