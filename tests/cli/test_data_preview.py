"""What `concordfl run FILE --dry-run` tells of the data."""

import io

import numpy as np
import pytest

from command import concordfl
from concordfl import Key
from concordfl.cli.data_preview import MAX_COLUMNS_SHOWN, show_data
from concordfl.cli.terminal import PlainConsole
from concordfl.data import Arrays, Dataset
from concordfl.data.own import Table

TABLE = """id,site,age,sex,same,y
1,a,60,m,7,sick
2,a,50,f,7,well
3,b,,m,7,well
4,b,70,,7,sick
5,b,70.5,f,7,sick
6,a,71,f,7,sick
"""


def preview(data):
    file = io.StringIO()
    console = PlainConsole(file=file, width=120)
    for part in show_data(data):
        console.print(part)
    return file.getvalue()


def cells(text, name):
    """The row of a table that begins with `name`."""
    row = next(line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in row.strip("│").split("│")]


@pytest.fixture
def shown(tmp_path):
    (tmp_path / "all.csv").write_text(TABLE)
    return preview(Table(table=str(tmp_path / "all.csv"), client="site").load(Key(0)))


def test_columns_have_their_kind_values_and_missing_cells(shown):
    assert shown.startswith("6 examples, 4 columns of features, 1 of them categories")
    assert cells(shown, "age") == ["age", "number", "50 to 71", "1 (17%)"]
    assert cells(shown, "sex") == ["sex", "category", "f, m", "1 (17%)"]
    assert cells(shown, "same") == ["same", "number", "7 (never varies)", ""]


def test_classes_are_counted(shown):
    assert "2 classes: sick 4, well 2\n" in shown


def test_many_columns_and_categories_are_cut_with_a_count(tmp_path):
    names = [f"c{number}" for number in range(MAX_COLUMNS_SHOWN + 5)]
    rows = [["ab"[i % 2], *(str(i) for _ in names), str(i % 2)] for i in range(20)]
    rows[3][-2] = ""
    for row in rows:
        row[-3] = "5"
    for index, row in enumerate(rows):
        row[1] = f"kind {index % 9}"
    header = ["site", *names, "y"]
    (tmp_path / "all.csv").write_text("\n".join(",".join(row) for row in [header, *rows]))
    text = preview(Table(table=str(tmp_path / "all.csv"), client="site").load(Key(0)))
    assert "5 more are not shown, 1 of them with missing cells, 1 that never vary" in text
    assert "kind 4, kind 5 and 3 more" in text
    assert f"│ c{MAX_COLUMNS_SHOWN - 1} " in text
    assert f"│ c{MAX_COLUMNS_SHOWN} " not in text


@pytest.mark.parametrize(
    ("x", "line"),
    [
        (np.zeros((2, 8, 6, 3), np.uint8), "2 images of 8 x 6 pixels, 3 channels"),
        (np.array([[1, np.nan], [3, 4]]), "2 examples of 2 numbers, 1 cells missing"),
        (np.zeros((2, 7)), "2 examples of 7 numbers\n"),
    ],
)
def test_examples_without_columns_are_one_line(x, line):
    arrays = Arrays(x, np.array([0, 1]))
    assert line in preview(Dataset(arrays, arrays, 2))


def test_targets_that_are_numbers_have_a_range():
    arrays = Arrays(np.zeros((2, 1)), np.array([0.5, 2.5]))
    assert "targets from 0.5 to 2.5" in preview(Dataset(arrays, arrays, 1))


def test_a_dry_run_shows_the_data_and_notices_identifiers(tmp_path):
    (tmp_path / "all.csv").write_text(TABLE)
    (tmp_path / "run.toml").write_text('[data]\ntable = "all.csv"\nclient = "site"\n')
    done = concordfl(tmp_path, "run", "run.toml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert cells(done.stdout, "sex") == ["sex", "category", "f, m", "1 (17%)"]
    assert done.stdout.splitlines()[-1] == (
        "Notice: column 'id' looks like an identifier: drop = [\"id\"] in [data] leaves it out"
    )


def test_a_run_warns_of_what_was_noticed_in_the_data(tmp_path):
    (tmp_path / "all.csv").write_text(TABLE)
    options = '[run]\nrounds = 1\nexecutor = "serial"\n[scenario]\nsplit = [0.5, 0.0, 0.5]\n'
    (tmp_path / "run.toml").write_text(options + '[data]\ntable = "all.csv"\nclient = "site"\n')
    line = "Warning (data): column 'id' looks like an identifier: drop = [\"id\"]"
    assert line in concordfl(tmp_path, "run", "run.toml").stdout
    done = concordfl(tmp_path, "compare", "run.toml", "--algorithms", "fedavg,local")
    assert done.stdout.count(line) == 1
