"""One client's own file, where each client is on a machine of its own: read, described for the
agreement with the others, and encoded as agreed.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from ..core import DataError
from .agreement import Look, Values
from .arrays import Arrays, are_grey
from .columns import TextValues, encode, match_columns, notices
from .csv_table import CsvTable, columns_of, read_header
from .dataset import Dataset
from .files import FOLDER, kind_of, list_folder
from .labels import Labels, sort_classes
from .own import TABLE_ENDINGS, Folder
from .own_tables import read_table, require_numbers
from .preprocessing import Preprocessing
from .row_splits import time_kinds
from .samples import Form, ImageReader, Samples, is_csv, read_labelled
from .targets import TargetFacts, may_be_classes
from .text import listing, quote

Part = CsvTable | Samples


class UnfitFolderError(DataError):
    """A folder that cannot be a client's, in words that name neither its rows nor its place."""


def find_file(folder: Path) -> Path:
    """A client's file, or the folder itself where it holds class folders of images."""
    rule = "the data folder must hold one .csv file, one .npz file or class folders of images"
    if kind_of(folder) != FOLDER:
        raise UnfitFolderError(f"{rule}, got no folder")
    entries = list_folder(folder)
    files = [path for path in entries if _is_table(path)]
    folders = [path for path in entries if kind_of(path) == FOLDER]
    if len(files) > 1 or (files and folders):
        found = [*files, *folders]
        raise UnfitFolderError(f"{rule}, got {listing(path.name for path in found)}")
    if not files and not folders:
        raise UnfitFolderError(f"{rule}, got nothing of these")
    return files[0] if files else folder


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLE_ENDINGS and kind_of(path) != FOLDER


def read_part(source: Folder, path: Path, client: str, texts: Collection[str] = ()) -> Part:
    """The client's examples; columns in `texts` are text at some client."""
    if not is_csv(path):
        samples = read_labelled(path, source.label, ImageReader(source.resize))
        return samples._replace(client=client)
    required = source.required()
    header = read_header(path, {*columns_of(source.label), *required})
    for name in (*columns_of(source.label), *required):
        if name not in header:
            raise UnfitFolderError(
                f"the data must have a column called {quote(name)}, got {listing(header)}"
            )
    table = read_table(path, source.label, required, source.drop or (), texts)
    if not len(table):
        raise UnfitFolderError(f"client {quote(client)} must have at least one example, got none")
    return table


# --- descriptions ---------------------------------------------------------------------------------


def look_at(source: Folder, part: Part, kind: str) -> Look:
    """`kind` of objective that the run asks for."""
    labels = labels_of(part)
    form = Form.of(part.x, labels, part.features)
    # In an order that says nothing of the rows'.
    facts = TargetFacts.of(sort_classes(labels.names), form.targets, kind)
    if isinstance(part, Samples):
        return Look(len(part.x), form, facts, is_grey=are_grey(part.x))
    return Look(
        len(part),
        form._replace(shape=(len(part.features),)),
        facts,
        is_table=True,
        header=part.header,
        texts=tuple(sorted(part.first_texts)),
        times=time_kinds(part.cells[source.time]) if source.time else (),
    )


def values_in(part: Part, examples: int, *, classes: bool, with_texts: bool) -> Values:
    """The values that must be agreed on, but for those that nobody can agree on: of columns of
    text, and of targets that are to be `classes`. All clients have so many `examples`.
    """
    texts = {}
    if isinstance(part, CsvTable):
        texts = {name: TextValues.of(part, name).withheld() for name in part.texts}
    names = sort_classes(labels_of(part).names)
    if not classes:
        return Values(texts)
    if not may_be_classes(names, examples, with_texts=with_texts):
        return Values(texts, (), len(names))
    return Values(texts, names)


def notices_of(part: Part) -> tuple[str, ...]:
    """Sentences on what the client should know of its data."""
    return notices([part]) if isinstance(part, CsvTable) else ()


def labels_of(part: Part) -> Labels:
    if part.labels is None:
        raise DataError("every client must have labels, got one without")
    return part.labels


# --- examples -------------------------------------------------------------------------------------


def rows_of(source: Folder, part: Part, client: str) -> Dataset:
    """As many examples as there are, without their values: what splitting them depends on."""
    count = len(part.x)
    arrays = Arrays(np.empty((count, 0), np.float32), np.zeros(count, np.int64))
    data = Dataset(arrays, arrays.take(np.arange(0)), 0)
    if isinstance(part, Samples):
        return data
    _, split, time = source.parse_roles(part.cells, [client] * count, "the data")
    return data._replace(split=split, time=time)


def encode_part(source: Folder, path: Path, client: str, agreed: Preprocessing) -> Dataset:
    """The client's examples as agreed, not yet standardised."""
    columns = agreed.table_columns
    texts = [column.name for column in columns if column.categories is not None]
    part = read_part(source, path, client, texts)
    if isinstance(part, CsvTable):
        match_columns([each.name for each in columns], part.features, "the data", "the run")
        require_numbers(part)
        x = encode(columns, part)
    else:
        x = part.x
    arrays = Arrays(agreed.inputs(x, path), agreed.number(labels_of(part), path))
    rows = rows_of(source, part, client)
    return rows._replace(
        train=arrays, test=arrays.take(np.arange(0)), num_classes=len(agreed.classes)
    )
