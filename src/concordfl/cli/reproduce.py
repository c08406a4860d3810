"""`concordfl reproduce`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.table import Table

from .. import papers
from ..core import SettingError
from ..core.settings import received
from ..engine.files import write_atomically
from ..papers import Paper, Reproduction
from ..papers.entries import Scale
from ..papers.reproduce import KeptRuns
from ..report import pictures
from ..report.curves import kind_of
from ..report.side_by_side import SideBySide
from .options import FreshOption, KeepOption
from .progress import show_progress
from .results import stoppable
from .terminal import console, say, show


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help=", ".join(papers.PAPERS), show_default=False)
    ] = None,
    item: Annotated[
        list[str] | None,
        typer.Argument(help="Such as `table 1` or `figure 5a`.", show_default=False),
    ] = None,
    list_items: Annotated[
        bool,
        typer.Option("--list", help="Show what there is, what it needs and how long it takes."),
    ] = False,
    scale: Annotated[
        str, typer.Option(help="tiny (seconds), small (up to an hour) or paper (the paper's own).")
    ] = "small",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="How many; by default as the item has them."),
    ] = None,
    rows: Annotated[
        str, typer.Option(help="Only these rows, separated by `;`.", show_default=False)
    ] = "",
    columns: Annotated[
        str, typer.Option(help="Only these columns, separated by `;`.", show_default=False)
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the table (.csv) and the picture (.svg).", show_default=False
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write a page of all that is kept, computing nothing.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compute nothing; say about how long it would take.")
    ] = False,
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    """A table or a figure of one of the four papers: the paper's numbers beside ours."""
    size = _scale(scale)
    if list_items or page is not None:
        about_one = {
            "an item": item,
            "--seeds": seeds,
            "--rows": rows,
            "--columns": columns,
            "--out": out,
            "--dry-run": dry_run,
            "--keep": keep,
            "--fresh": fresh,
        }
        _refuse_others("--list" if list_items else "--page", about_one)
    chosen = [papers.read_paper(name) for name in ([paper] if paper else papers.PAPERS)]
    if list_items:
        show(_listing(chosen, size))
        return
    if page is not None:
        write_atomically(page, "\n".join(_page(page, chosen, size)) + "\n")
        say(f"All that is kept at scale {size} is in {page}")
        return
    if paper is None or not item:
        raise SettingError(
            "reproduce needs a paper and an item, got "
            f"{received(paper)} alone: `concordfl reproduce --list` shows them"
        )
    name = papers.find_item(chosen[0], " ".join(item))
    folder = out or Path("runs") / f"reproduce-{paper}" / f"{name}-{size}"
    with stoppable(None if fresh else "the same command"):  # --fresh begins anew every time
        found = papers.reproduce(
            chosen[0],
            name,
            size,
            display=lambda title: show_progress(console, title),
            seeds=seeds,
            only_rows=_names(rows),
            only_columns=_names(columns),
            keep=keep,
            fresh=fresh,
            compute=not dry_run,
        )
    if dry_run:
        say(*_sentences(found), _work_sentence(found))
        return
    if chosen[0].items[name].has_figures:
        say(found.table.title)  # a narrow table would break it
        show(found.table.table())
    say(*_sentences(found), *_write(found, folder))


def _refuse_others(option: str, about_one: Mapping[str, object]) -> None:
    """What is about a single item would have no effect."""
    for name, given in about_one.items():
        if given:
            raise SettingError(f"{option} is about all items, got {name} with it")


def _scale(text: str) -> Scale:
    for scale in get_args(Scale):
        if text == scale:
            return scale  # type: ignore[no-any-return]
    raise SettingError(f"--scale must be one of {', '.join(papers.SCALES)}, got {received(text)}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]


def _sentences(found: Reproduction) -> Iterator[str]:
    if ranks := found.table.rank_sentence():
        yield ranks
    yield from (f"- {note}" for note in found.notes)


def _work_sentence(found: Reproduction) -> str:
    """How long the runs that are not kept take, by a few steps of each federation's training."""
    if not found.absent:
        return "Nothing is to be computed: every run is kept"
    estimate = papers.Estimator()
    seconds = sum(estimate(settings) for settings in found.absent)
    return f"To compute: {len(found.absent)} runs, about {_duration(seconds)} on this machine"


def _write(found: Reproduction, folder: Path) -> Iterator[str]:
    """The table and the picture as files; what is said of them."""
    folder.mkdir(parents=True, exist_ok=True)
    if found.item.has_figures:
        write_atomically(folder / "table.csv", found.table.to_csv())
        yield f"Figures are in {folder / 'table.csv'}"
    if found.panels:
        write_atomically(folder / "picture.csv", pictures.to_csv(found.panels))
        _draw(found, folder / "picture.svg")
        yield f"The picture is {folder / 'picture.svg'}, its data are beside it"


def _draw(found: Reproduction, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    title = f"{found.paper.name}, {papers.spoken(found.name)} ({found.scale})"
    write_atomically(file, pictures.draw(title, found.panels, kind_of(file)))


# --- what there is --------------------------------------------------------------------------------


def _listing(chosen: Iterable[Paper], scale: Scale) -> Table:
    table = Table(
        title=f"concordfl reproduce PAPER ITEM --scale {scale}",
        title_justify="left",
        caption="kept: runs whose figures are shown without computing them; time: what all runs "
        "take, by those that are kept; ?: `reproduce PAPER ITEM --dry-run` estimates it",
        caption_justify="left",
    )
    for name in ("paper", "item", "what it shows"):
        table.add_column(name, no_wrap=name != "what it shows")
    table.add_column("data")
    for name in ("kept", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for paper in chosen:
        for name, item in paper.items.items():
            runs = papers.kept_runs(paper, name, scale)
            data = [
                f"{each} (not at hand)" if each in runs.missing else each
                for each in papers.data_of(paper, name)
            ]
            kept = f"{runs.kept} of {runs.all}"
            table.add_row(
                paper.name, papers.spoken(name), item.about, ", ".join(data), kept, _time(runs)
            )
        table.add_section()
    return table


def _time(runs: KeptRuns) -> str:
    """What all runs take, by those that are kept."""
    if not runs.kept:
        return "?"
    about = "about " * (runs.kept < runs.all)
    return about + _duration(runs.seconds * runs.all / runs.kept)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


# --- the page of results --------------------------------------------------------------------------


def _page(page: Path, chosen: Iterable[Paper], scale: Scale) -> Iterator[str]:
    yield from (
        "# Results",
        "",
        "Tables and figures of the four papers, computed here: ours, and in brackets the paper's.",
        f"`concordfl reproduce --page docs/results.md --scale {scale}` makes this page of the",
        "results that are kept in [experiments/](../experiments/). One of them is shown by",
        "`concordfl reproduce PAPER ITEM`, and computed anew with `--fresh`.",
    )
    for paper in chosen:
        yield from ("", f"## {paper.title}")
        missing = []
        for name, item in paper.items.items():
            runs = papers.kept_runs(paper, name, scale)
            if 2 * runs.kept < runs.all or not runs.kept:
                begun = f" ({runs.kept} of {runs.all} runs are)" if runs.kept else ""
                missing.append(papers.spoken(name) + begun)
                continue
            found = papers.reproduce(paper, name, scale, display=papers.no_display, compute=False)
            yield from ("", f"### {papers.spoken(name).capitalize()}: {item.about}", "")
            if item.kind == "table":
                yield from _computed(found.table)
            elif item.has_figures:  # some pictures have no number by their nature
                yield from (*found.table.markdown(), "")
            if found.panels:
                picture = Path(page.stem) / f"{paper.name}-{name}.svg"
                _draw(found, page.parent / picture)
                yield from (f"![{papers.spoken(name)}]({picture.as_posix()})", "")
            yield from _sentences(found)
        if missing:
            yield from ("", f"Not kept at this scale: {', '.join(missing)}.")


def _computed(table: SideBySide) -> Iterator[str]:
    """The table without rows and columns that have no results, and their names."""
    shown = table.computed()
    yield from (*shown.markdown(), "")
    names = {*shown.rows, *shown.columns}
    if absent := [name for name in (*table.rows, *table.columns) if name not in names]:
        yield from (f"Without results here: {'; '.join(absent)}.", "")
