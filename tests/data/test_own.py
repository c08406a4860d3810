"""A user's own data."""

import numpy as np
import pytest
from PIL import Image

import concordfl as cf
from concordfl import DataError, Key, SettingError
from concordfl.config import Config
from concordfl.data.datasets import DATASETS, OWN_DATA
from concordfl.data.own import Folder, Table
from concordfl.deploy.newcomer import adapt
from concordfl.scenarios.partition import Iid, Natural
from concordfl.study.cells import ConfigHasher

CSV = "age,weight,y\n50,70.5,sick\n60,,well\n70,80,well\n"


def folder(path, **options):
    return Folder(folder=str(path), **options).load(Key(0))


def test_a_csv_per_client(tmp_path):
    (tmp_path / "north.csv").write_text(CSV)
    (tmp_path / "south.csv").write_text(CSV.replace("sick", "unsure"))
    (tmp_path / "notes.txt").write_text("not a client")
    data = folder(tmp_path)
    assert data.classes == ("sick", "unsure", "well")
    assert data.owners.tolist() == ["north"] * 3 + ["south"] * 3
    assert data.train.y.tolist() == [0, 2, 2, 1, 2, 2]
    assert np.isnan(data.train.x[1, 1])
    assert data.train.x[2].tolist() == [70, 80]


def test_one_table_gives_the_same_numbers_as_a_file_per_client(tmp_path):
    rng = np.random.default_rng(0)
    header = "a,b,c,label"
    lines = {
        name: [
            f"{a:.3f},{b:.3f},,{k}" if k == 9 else f"{a:.3f},{b:.3f},{c:.3f},{int(a + b > 0)}"
            for k, (a, b, c) in enumerate(rng.normal(size=(30, 3)))
        ]
        for name in ("x", "y", "z")
    }
    lines = {
        name: [line if not line.endswith(",9") else line[:-1] + "1" for line in rows]
        for name, rows in lines.items()
    }
    (tmp_path / "clients").mkdir()
    for name, rows in lines.items():
        (tmp_path / f"clients/{name}.csv").write_text("\n".join([header, *rows]))
    table = ["hospital," + header] + [
        f"{name},{row}" for name, rows in lines.items() for row in rows
    ]
    (tmp_path / "all.csv").write_text("\n".join(table))
    files = cf.run(data={"folder": str(tmp_path / "clients"), "label": "label"}, run={"rounds": 3})
    one = cf.run(
        data={"table": str(tmp_path / "all.csv"), "client": "hospital", "label": "label"},
        run={"rounds": 3},
    )
    assert one.summary["parameters_sha256"] == files.summary["parameters_sha256"]
    assert one.summary["final"] == files.summary["final"]
    assert files.summary["preprocessing"]["classes"] == ["0", "1"]
    assert len(files.summary["preprocessing"]["standardised"]["mean"]) == 3


def test_npz_files(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        np.savez(
            tmp_path / f"{name}.npz",
            x=rng.integers(256, size=(6, 9, 9), dtype=np.uint8),
            y=np.array(list("ppqqrr")),
        )
    data = folder(tmp_path)
    assert data.train.x.shape == (12, 9, 9, 1)
    assert data.train.x.dtype == np.uint8
    assert data.classes == ("p", "q", "r")


def test_folders_of_images(tmp_path):
    for client in ("one", "two"):
        for label in ("cat", "dog"):
            (tmp_path / client / label).mkdir(parents=True)
            for number in range(2):
                colour = (number * 100, 50, 0) if label == "cat" else (5, 5, 5)
                Image.new("RGB", (8, 6), colour).save(tmp_path / client / label / f"{number}.png")
    data = folder(tmp_path)
    assert data.train.x.shape == (8, 6, 8, 3)
    assert data.train.y.tolist() == [0, 0, 1, 1] * 2
    Image.new("L", (8, 6), 7).save(tmp_path / "one/cat/grey.png")
    assert folder(tmp_path).train.x.shape == (9, 6, 8, 3)
    (tmp_path / "one/cat/broken.png").write_text("not an image")
    with pytest.raises(DataError, match=r"broken.png must be an image"):
        folder(tmp_path)
    (tmp_path / "one/cat/broken.png").unlink()
    Image.new("RGB", (9, 6)).save(tmp_path / "two/dog/wide.png")
    with pytest.raises(
        DataError, match=r"wide.png: images must all be \(6, 8\) pixels, got \(6, 9\)"
    ):
        folder(tmp_path)


def write_images(path, sizes):
    """A client's images in two classes; (height, width) of each."""
    rng = np.random.default_rng(0)
    pictures = []
    for number, (height, width) in enumerate(sizes):
        file = path / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(256, size=(height, width, 3), dtype=np.uint8)
        pictures.append(Image.fromarray(pixels))
        pictures[-1].save(file)
    return pictures


def test_images_are_brought_to_one_size(tmp_path):
    pictures = write_images(tmp_path / "sites/a", [(8, 6), (8, 6), (9, 12), (4, 4)])
    with pytest.raises(DataError, match=r"resize = \[HEIGHT, WIDTH\] in \[data\] brings them to"):
        folder(tmp_path / "sites")
    data = folder(tmp_path / "sites", resize=(4, 5))
    expected = [np.asarray(one.resize((5, 4), Image.Resampling.BILINEAR)) for one in pictures]
    assert np.array_equal(data.train.x, np.stack([expected[i] for i in (0, 2, 1, 3)]))
    assert data.resize == (4, 5)


def test_a_newcomers_images_are_brought_to_the_runs_size(tmp_path):
    write_images(tmp_path / "sites/a", [(8, 6), (8, 6)] * 5)
    cf.run(
        data={"folder": str(tmp_path / "sites"), "resize": [4, 5]},
        run={"rounds": 1, "executor": "serial"},
        out=tmp_path / "run",
    )
    write_images(tmp_path / "late", [(9, 9), (3, 3), (4, 5), (8, 6)])
    assert adapt(tmp_path / "run", tmp_path / "late")["tested_on"]["examples"] == 2


def test_many_images_are_counted_while_they_are_read(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("concordfl.data.samples.IMAGES_PER_LINE", 4)
    for name in "ab":
        write_images(tmp_path / name, [(3, 3)] * 5)
    with caplog.at_level("INFO", "concordfl"):
        folder(tmp_path)
    assert caplog.messages == ["4 images read", "8 images read"]


def test_labels_that_are_numbers_are_ordered_as_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,10\n2,9\n3,9.0\n")
    assert folder(tmp_path).train.y.tolist() == [1, 0, 0]


def put(tmp_path, **files):
    for name, content in files.items():
        path = tmp_path / name.replace("_", ".")
        if isinstance(content, str):
            path.write_text(content)
        else:
            np.savez(path, **content)
    return tmp_path


ROWS = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "must hold a .npz file, a .csv file or a folder per client, got none"),
        ({"a_csv": ""}, "a.csv must have a header line, got an empty file"),
        ({"a_csv": "x,z\n1,2\n"}, "a.csv must have a column called 'y', got x, z"),
        ({"a_csv": "x,y\n1,2,3\n"}, "a.csv, line 2: must have 2 values as the header, got 3"),
        (
            {"a_csv": "x,y\n1,\n"},
            "a.csv, line 2: every row must have a label in column 'y', got ''",
        ),
        (
            {"a_csv": "x,y\n1,1\n2,2\n", "b_csv": "x,y\n"},
            "client 'b' must have at least one example, got none",
        ),
        ({"a_csv": "x,y\n1,1\n2,1\n"}, r"labels must take at least two values, got 1"),
        (
            {"a_csv": "x,y\n1,1\n2,2\n", "b_csv": "z,y\n1,1\n"},
            "client 'b': columns must be those of client 'a', got none called x",
        ),
        (
            {"a_csv": "x,y\n1,1\n2,2\n", "b_csv": "x,z,y\n1,1,1\n"},
            "client 'b': columns must be those of client 'a' .x., got z beside them",
        ),
        (
            {"a_csv": CSV, "a_npz": {"x": ROWS, "y": [0, 1, 1]}},
            "one file or folder per client, got several called a",
        ),
        ({"a_npz": {"x": ROWS}}, "a.npz must hold the arrays x and y, got x alone"),
        ({"a_npz": {"x": ROWS, "y": [1, 2]}}, "x and y must be equally long, got 3 and 2"),
        (
            {"a_npz": {"x": ROWS, "y": ROWS[:, None]}},
            "y must be one label per example, or a row of numbers, got an array of shape",
        ),
        (
            {"a_npz": {"x": np.array(["u", "v"]), "y": [1, 2]}},
            "x must be uint8 images or rows of numbers",
        ),
        ({"a_npz": "no"}, "a.npz must be a readable .npz file"),
        ({"a_npz": "PK\x03\x04 broken"}, "a.npz must be a readable .npz file"),
        ({"a_npz": {"x": ROWS, "y": 3}}, "y must be one label per example, or a row of numbers"),
        ({"a_npz": {"x": ROWS, "y": [0, 1, np.nan]}}, "labels must be finite, got NaN or infinity"),
        (
            {"a_npz": {"x": ROWS + np.inf, "y": [0, 1, 1]}},
            "features must be finite or NaN for missing, got infinity",
        ),
        ({"a_csv": "x,y\n1e99,1\n2,2\n"}, "column 'x' must be a number or missing, got '1e99'"),
    ],
)
def test_what_does_not_fit_names_the_file_and_the_rule(tmp_path, files, message):
    with pytest.raises(DataError, match=message) as error:
        folder(put(tmp_path, **files))
    assert "\n" not in str(error.value)


def test_missing_files_and_columns(tmp_path):
    with pytest.raises(DataError, match="data.folder must be a folder"):
        folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="data.table must be a file, got nothing at .*none.csv"):
        Table(table=str(tmp_path / "none.csv")).load(Key(0))
    (tmp_path / "all.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match="must have a column called 'client'"):
        Table(table=str(tmp_path / "all.csv")).load(Key(0))
    (tmp_path / "client").mkdir()
    with pytest.raises(DataError, match="client 'client': .* must hold class folders with images"):
        folder(tmp_path)


def test_nan_without_standardising_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    with pytest.raises(DataError, match="features must be finite, got NaN or infinity"):
        cf.run(
            data={"folder": str(tmp_path), "standardise": False},
            scenario={"split": [1.0, 0.0, 0.0]},
            run={"rounds": 1},
        )
    (tmp_path / "a.csv").write_text("x,z,y\n1,,1\n2,,2\n")
    with pytest.raises(
        DataError,
        match="must have a value in somebody's training examples, got none for feature 'z'",
    ):
        cf.run(
            data={"folder": str(tmp_path)}, scenario={"split": [1.0, 0.0, 0.0]}, run={"rounds": 1}
        )


def test_a_table_without_rows(tmp_path):
    (tmp_path / "all.csv").write_text("client,x,y\n")
    with pytest.raises(DataError, match="there must be at least one example, got none"):
        Table(table=str(tmp_path / "all.csv")).load(Key(0))


def test_a_table_of_many_clients_is_read_in_one_pass(tmp_path):
    """20,000 clients took minutes when every client looked at every row."""
    rows = [f"c{number % 20_000:05d},{number},{number % 3}" for number in range(40_000)]
    (tmp_path / "all.csv").write_text("\n".join(["client,x,y", *rows]))
    data = Table(table=str(tmp_path / "all.csv")).load(Key(0))
    assert data.train.x[:4, 0].tolist() == [0, 20_000, 1, 20_001]
    assert data.owners[:3].tolist() == ["c00000", "c00000", "c00001"]
    assert data.train.y[:4].tolist() == [0, 2, 1, 0]


def test_many_files_in_a_folder(tmp_path):
    for number in range(300):
        (tmp_path / f"{number}.csv").write_text(f"x,y\n{number},{number % 2}\n")
    assert len(folder(tmp_path).train.y) == 300


def test_the_client_and_the_label_are_two_columns():
    with pytest.raises(SettingError, match="client must be another column than label, got 'y'"):
        Table(table="all.csv", client="y")


def test_own_data_come_in_clients_of_their_own(tmp_path):
    for data in ({"folder": "x"}, {"table": "x"}, {"name": "heart-disease"}):
        assert isinstance(Config.from_table({"data": data}).scenario.partition, Natural)
    assert isinstance(Config.from_table({"data": {"name": "mnist"}}).scenario.partition, Iid)
    with_clients = {name for name, kind in DATASETS.items() if kind.has_clients}
    generated = {"synthetic-mixture", "three-datasets", "two-gaussians"}
    assert with_clients == {"folder", "table", "memory", "heart-disease", *generated}
    assert set(OWN_DATA) < with_clients


def test_edited_data_are_other_data(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    settings = {"data": {"folder": str(tmp_path)}}
    before = ConfigHasher()(Config.from_table(settings))
    assert ConfigHasher()(Config.from_table(settings)) == before
    (tmp_path / "a.csv").write_text(CSV.replace("50", "51"))
    assert ConfigHasher()(Config.from_table(settings)) != before


def test_newcomers_are_read_as_the_run_read_its_clients(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "clinics").mkdir()

    def write(path, header="a,b,grade", dtype=int):
        rows = [f"{a:.2f},{b:.2f},{dtype(a + b > 0)}" for a, b in rng.normal(size=(30, 2))]
        path.write_text("\n".join([header, *rows]))

    for name in "pqr":
        write(tmp_path / f"clinics/{name}.csv")
    cf.run(
        data={"folder": str(tmp_path / "clinics"), "label": "grade"},
        run={"rounds": 5},
        out=tmp_path / "run",
    )
    write(tmp_path / "late.csv", dtype=float)  # 0.0 and 1.0 are the classes 0 and 1
    assert adapt(tmp_path / "run", tmp_path / "late.csv")["tested_on"]["examples"] == 15
    x = rng.normal(size=(20, 2))
    np.savez(tmp_path / "later.npz", x=x, y=(x.sum(1) > 0).astype(int))
    assert adapt(tmp_path / "run", tmp_path / "later.npz")["tested_on"]["accuracy"] > 0.5
    write(tmp_path / "swapped.csv", "b,a,grade")
    assert adapt(tmp_path / "run", tmp_path / "swapped.csv")["tested_on"]["examples"] == 15
    write(tmp_path / "other.csv", "a,c,grade")
    with pytest.raises(DataError, match="columns must be those of the run, got none called b"):
        adapt(tmp_path / "run", tmp_path / "other.csv")
    np.savez(tmp_path / "odd.npz", x=x, y=np.full(20, 7))
    with pytest.raises(DataError, match="labels must be among 0, 1, got 7"):
        adapt(tmp_path / "run", tmp_path / "odd.npz")
    with pytest.raises(DataError, match="the client's data must exist"):
        adapt(tmp_path / "run", tmp_path / "nowhere.csv")


def test_labels_are_left_out_by_their_own_names(tmp_path):
    (tmp_path / "all.csv").write_text(
        "a,client,y\n" + "".join(f"{i},{'pq'[i % 2]},{i % 3 + 1}\n" for i in range(12))
    )
    table = {"table": str(tmp_path / "all.csv"), "without": [1]}
    data = Config.from_table({"data": table}).data.load(Key(0))
    assert data.classes == ("1", "2", "3")
    assert set(data.train.y.tolist()) == {1, 2}  # the numbers of the classes called 2 and 3
    with pytest.raises(SettingError, match=r"must name labels of the data \(1, 2, 3\), got 4"):
        Config.from_table({"data": {**table, "without": [4]}}).data.load(Key(0))


def test_a_limit_of_test_examples_needs_a_test_set(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    data = Config.from_table({"data": {"folder": str(tmp_path), "test_limit": 5}}).data
    with pytest.raises(SettingError, match="data.test_limit needs data with a test set of their"):
        data.load(Key(0))
