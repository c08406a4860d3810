"""What `concordfl federate up` shows: who is there, and how the run is getting on."""

from pathlib import Path
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..federate.local import View
from .terminal import printable
from .watch_display import Display

STATE_STYLES = {
    "not started": "dim",
    "starting": "yellow",
    "connected": "cyan",
    "taking part": "green",
}
MAX_CLIENTS = 12  # that are listed one by one


class FederationDisplay(NamedTuple):
    """Drawn anew for every look."""

    folder: Path
    view: View

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self.view
        there = sum(state == "taking part" for state in view.clients.values())
        yield Text.assemble(
            (printable(str(self.folder)), "bold"),
            f"  {there} of {len(view.clients)} clients take part  ",
            (view.stage, "yellow"),
        )
        yield _clients(view)
        for refusal in view.refusals:
            yield Text.assemble(("! ", "yellow"), printable(refusal))
        if view.run is not None:
            yield Text("")
            yield Display(self.folder, [view.run])


def _clients(view: View) -> Table:
    """Those who are missing first."""
    order = list(STATE_STYLES)
    listed = sorted(view.clients.items(), key=lambda item: order.index(item[1]))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for name, state in listed[:MAX_CLIENTS]:
        table.add_row(printable(name), Text(state, STATE_STYLES[state]))
    if len(listed) > MAX_CLIENTS:
        table.add_row(f"and {len(listed) - MAX_CLIENTS} more", "")
    return table
