"""Tables as people have them: categories, any order of columns, other delimiters, identifiers."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import concordfl as cf
from command import concordfl
from concordfl import DataError, Key, SettingError
from concordfl.data import Preprocessing
from concordfl.data.columns import MAX_CATEGORIES
from concordfl.data.csv_table import read_csv
from concordfl.data.gather import gather
from concordfl.data.memory import Memory, read_given
from concordfl.data.own import Folder, Table
from concordfl.data.samples import read_samples
from concordfl.scenarios import Scenario, build_federation
from concordfl.scenarios.partition import Iid, Natural

HEARTS = """id,site,age,sex,pain,y
1,a,60,m,none of these,sick
2,a,50,f,typical,well
3,b,,m,typical,well
4,b,70,,silent,sick
"""


def table(tmp_path, text, **options):
    (tmp_path / "all.csv").write_text(text)
    options = {"client": "site", **options}
    return Table(table=str(tmp_path / "all.csv"), **options).load(Key(0))


def folder(tmp_path, **files):
    options = files.pop("options", {})
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return Folder(folder=str(tmp_path), **options).load(Key(0))


def build(data, **scenario):
    scenario = {"partition": Natural(), "split": (1.0, 0.0, 0.0), **scenario}
    return build_federation(data, Scenario(**scenario), Key(0), standardise=True)


def message(call, *arguments, kind=DataError, **options):
    """The refusal, which is one line."""
    with pytest.raises(kind) as error:
        call(*arguments, **options)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


# --- categories -----------------------------------------------------------------------------------


def test_text_becomes_an_indicator_per_category(tmp_path):
    data = table(tmp_path, HEARTS, drop=("id",))
    assert data.features == (
        "age", "sex=f", "sex=m", "pain=none of these", "pain=silent", "pain=typical",
    )  # fmt: skip
    expected = [[60, 0, 1, 1, 0, 0], [50, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 1], [70, 0, 0, 0, 1, 0]]
    assert np.nan_to_num(data.train.x).tolist() == expected
    assert np.isnan(data.train.x[2, 0])
    assert data.train.x.dtype == np.float32


def test_encoding_agrees_with_scikit_learn(tmp_path):
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(0)
    texts = rng.choice(["red", "green", "blue", "Red"], size=(40, 2))
    rows = [f"{'ab'[i % 2]},{u},{v},{i % 2}" for i, (u, v) in enumerate(texts.tolist())]
    data = table(tmp_path, "\n".join(["site,u,v,y", *rows]))
    order = [*range(0, 40, 2), *range(1, 40, 2)]  # by client
    theirs = OneHotEncoder(sparse_output=False).fit_transform(texts[order])
    assert data.train.x.tolist() == theirs.tolist()


def test_none_is_a_category_among_others_and_missing_among_numbers(tmp_path):
    text = "site,pain,x,y\na,none,none,0\nb,strong,2,1\nb,NA,1,0\n"
    data = table(tmp_path, text)
    assert data.features == ("pain=none", "pain=strong", "x")
    assert np.nan_to_num(data.train.x, nan=-1).tolist() == [[1, 0, -1], [0, 1, 2], [0, 0, 1]]


def test_categories_are_those_of_all_clients(tmp_path):
    """What is a number at one client is a category where another has text."""
    data = folder(
        tmp_path,
        a="colour,x,y\nred,1,0\nblue,2,1\n",
        b="x,colour,y\n3,7,0\n4,red,1\n",
        c="colour,x,y\n7.0,5,1\n",
    )
    assert data.features == ("colour=7", "colour=blue", "colour=red", "x")
    assert data.train.x.tolist() == [
        [0, 0, 1, 1], [0, 1, 0, 2], [1, 0, 0, 3], [0, 0, 1, 4], [1, 0, 0, 5],
    ]  # fmt: skip


def test_a_folder_and_a_table_give_the_same_examples(tmp_path):
    one = table(tmp_path, HEARTS, drop=("id",))
    (tmp_path / "sites").mkdir()
    rows = [line.split(",") for line in HEARTS.splitlines()]
    files = {
        name: "\n".join(",".join([*row[2:]]) for row in rows if row[1] in ("site", name))
        for name in "ab"
    }
    several = folder(tmp_path / "sites", **files)
    assert several.features == one.features
    assert np.array_equal(several.train.x, one.train.x, equal_nan=True)
    assert several.train.y.tolist() == one.train.y.tolist()


def test_categories_are_not_standardised(tmp_path):
    federation = build(table(tmp_path, HEARTS, drop=("id",)))
    x = federation.x.numpy()
    assert set(np.unique(x[:, 1:])) == {0.0, 1.0}
    assert x[:, 0].mean() == pytest.approx(0, abs=1e-6)


def test_categories_of_held_out_clients_are_unknown(tmp_path):
    data = table(tmp_path, HEARTS, drop=("id",))
    federation = build(data, hold_out=("b",))
    assert federation.preprocessing.features == (
        "age", "sex=f", "sex=m", "pain=none of these", "pain=typical",
    )  # fmt: skip
    held_out = federation.splits("b").train.x.numpy()
    silent = held_out[held_out[:, 2] == 0][0]  # whose sex is missing too
    assert silent[1:].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("rows", [25, 250])
def test_text_that_tells_rows_apart_is_refused(tmp_path, rows):
    lines = [f"{'ab'[i % 2]},{i % 7},person {i},{i % 2}" for i in range(rows)]
    found = message(table, tmp_path, "\n".join(["site,x,name,y", *lines]))
    assert f"column 'name' must be numbers, or text of at most {MAX_CATEGORIES} categories" in found
    assert found.endswith("""such as 'person 0': drop = ["name"] in [data] leaves it out""")


def test_text_with_too_many_values_is_refused(tmp_path):
    lines = [f"{'ab'[i % 2]},{i % 7},word {i % 130},{i % 2}" for i in range(500)]
    assert "categories, got 130, such as 'word 0'" in message(
        table, tmp_path, "\n".join(["site,x,name,y", *lines])
    )


def test_a_slip_in_a_column_of_numbers_is_refused_where_it_stands(tmp_path):
    lines = [f"{'ab'[i % 2]},{i / 4},{i % 2}" for i in range(40)]
    lines[6] = "a,12o,1"
    found = message(table, tmp_path, "\n".join(["site,x,y", *lines]))
    assert "line 8: column 'x' must be a number or missing, got '12o' beside 39 different" in found


def test_numbers_among_categories_are_noticed(tmp_path):
    lines = [f"{'ab'[i % 2]},{i % 3},{i % 2}" for i in range(12)]
    lines[6] = "a,3+,1"
    data = table(tmp_path, "\n".join(["site,x,y", *lines]))
    assert data.features == ("x=0", "x=1", "x=2", "x=3+")
    assert data.notices == (
        "column 'x' is taken as categories although it has numbers, since '3+' in line 8 is none",
    )


def test_two_features_of_one_name_are_refused(tmp_path):
    text = "site,sex,sex=m,y\na,m,1,0\nb,f,2,1\n"
    assert "features must have different names, got several called sex=m" in message(
        table, tmp_path, text
    )


# --- columns --------------------------------------------------------------------------------------


def test_dropped_columns_may_hold_anything(tmp_path):
    text = "site,note,x,y\na,1e99,1,0\nb,,2,1\n"
    assert table(tmp_path, text, drop=("note",)).features == ("x",)


def test_a_dropped_column_must_be_there(tmp_path):
    assert message(table, tmp_path, HEARTS, drop=("idd",), kind=SettingError) == (
        "data.drop must name columns of the data, got 'idd': did you mean 'id'?"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"drop": ("site",)}, "client must be another column than drop, got 'site' for both"),
        ({"drop": ("y",)}, "label must be another column than drop, got 'y' for both"),
        ({"group": "y"}, "label must be another column than group, got 'y' for both"),
        ({"split": "a", "time": "b"}, "split and time must not both be given, got 'a' and 'b'"),
    ],
)
def test_a_column_has_one_meaning(options, text):
    assert message(Table, client="site", kind=SettingError, **options) == text


def test_an_extra_or_missing_column_of_a_client_is_one_line(tmp_path):
    files = {"a": "x,z,y\n1,2,0\n", "b": "z,x,y\n1,2,1\n"}
    assert folder(tmp_path, **files).train.x.tolist() == [[1, 2], [2, 1]]
    assert message(folder, tmp_path, c="x,y\n1,0\n") == (
        "client 'c': columns must be those of client 'a', got none called z"
    )
    assert message(folder, tmp_path, c="x,z,u,y\n1,0,2,1\n") == (
        "client 'c': columns must be those of client 'a' (x, z), got u beside them"
    )
    assert folder(tmp_path, options={"drop": ("u",)}).features == ("x", "z")


def test_columns_by_name_are_for_csv_files_alone(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), y=[0, 1])
    found = message(folder, tmp_path, options={"drop": ("u",)}, kind=SettingError)
    assert found == "data.drop must be about a folder of .csv files, got 'u' for other files"


# --- delimiters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_header_tells_the_delimiter(tmp_path, delimiter):
    data = table(tmp_path, HEARTS.replace(",", delimiter), drop=("id",))
    assert data.features[:3] == ("age", "sex=f", "sex=m")
    assert data.train.x[0, 0] == 60


def test_another_delimiter_in_a_name_does_not_mislead(tmp_path):
    text = "site;weight (kg, net, dry);y\na;1;0\nb;2;1\n"
    assert table(tmp_path, text).features == ("weight (kg, net, dry)",)
    text = "site,a;b;c;d,y\na,1,0\nb,2,1\n"
    assert table(tmp_path, text).features == ("a;b;c;d",)


def test_decimal_commas_are_understood_and_noticed(tmp_path):
    data = table(tmp_path, "site;x;y\na;1,5;0\nb;-,25e1;1\n")
    assert data.train.x.tolist() == [[1.5], [-2.5]]
    assert data.notices == ("numbers have decimal commas: 1,5 is 1.5",)


def test_decimal_commas_beside_points_are_refused(tmp_path):
    found = message(table, tmp_path, "site;x;z;y\na;1,234;1;0\nb;2;1.5;1\n")
    assert found.endswith("alike, got '1,234' in line 2 and '1.5' in line 3")


def test_labels_with_decimal_commas_are_numbers_and_noticed(tmp_path):
    data = table(tmp_path, "site;x;y\na;1;0,5\nb;2;1\n")
    assert data.classes == ("0.5", "1")
    assert data.notices == ("numbers have decimal commas: 0,5 is 0.5",)


@pytest.mark.parametrize(
    ("text", "line_of_comma", "line_of_point"),
    [
        ("site;x;y\na;0.5;1,200\nb;1.5;1,201\n", 2, 2),
        ("site;x;y\na;1;2.5\nb;1,200;3\n", 3, 2),
        ("site;x;y;z\na;0.5;1,200;1\nb;1;1;2\n", 2, 2),
    ],
)
def test_labels_are_numbers_like_all_others(tmp_path, text, line_of_comma, line_of_point):
    label = ("y", "z") if "z" in text else "y"
    found = message(table, tmp_path, text, label=label)
    assert "numbers must have decimal commas or decimal points alike, got '1,200'" in found
    assert f"in line {line_of_comma} and " in found
    assert found.endswith(f"in line {line_of_point}")


def test_words_with_points_or_commas_are_labels_like_others(tmp_path):
    data = table(tmp_path, "site;x;y\na;1,5;v1.5\nb;2;a, b\n")
    assert data.classes == ("a, b", "v1.5")


# --- identifiers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["id", "ID", "patient_id", "patientId", "row no", "Index"])
def test_a_column_that_looks_like_an_identifier_is_noticed(tmp_path, name):
    text = HEARTS.replace("id,", f"{name},", 1)
    assert table(tmp_path, text).notices == (
        f'column {name!r} looks like an identifier: drop = ["{name}"] in [data] leaves it out',
    )


@pytest.mark.parametrize("name", ["weight", "paid", "humid", "kid", "grid"])
def test_other_columns_are_not_called_identifiers(tmp_path, name):
    assert table(tmp_path, HEARTS.replace("id,", f"{name},", 1)).notices == ()


def test_an_identifier_that_repeats_is_a_feature(tmp_path):
    assert table(tmp_path, HEARTS.replace("\n2,", "\n1,")).notices == ()


def test_text_that_is_an_identifier_is_noticed(tmp_path):
    text = "site,key,y\na,u1,0\nb,u2,1\n"
    assert "column 'key' looks like an identifier" in table(tmp_path, text).notices[0]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
@pytest.mark.parametrize("start", [0, 1])
def test_a_column_that_counts_the_rows_is_noticed(tmp_path, name, start):
    lines = [f"{i + start},{'ab'[i % 2]},{i / 3},{i % 2}" for i in range(10)]
    text = "\n".join([f"{name},site,x,y", *lines])
    data = table(tmp_path, text)
    assert data.notices == (
        f'column {name!r} only counts the rows: drop = ["{name}"] in [data] leaves it out',
    )
    assert table(tmp_path, text, drop=(name,)).features == ("x",)


def test_rows_are_counted_in_every_file_of_a_folder(tmp_path):
    data = folder(tmp_path, a=",x,y\n0,3,0\n1,4,1\n", b=",x,y\n0,5,0\n1,6,1\n2,7,1\n")
    assert "column '' only counts the rows" in data.notices[0]


# --- groups, splits and times ---------------------------------------------------------------------


def test_a_group_column_is_the_true_group_of_clients(tmp_path):
    text = "site,x,region,y\na,1,north,0\na,2,north,1\nb,3,south,1\n"
    data = table(tmp_path, text, group="region")
    assert data.features == ("x",)
    groups = build(data).groups
    assert {id: group["partition"] for id, group in groups.items()} == {"a": "north", "b": "south"}


def test_a_group_column_without_effect_is_refused(tmp_path):
    text = "site,x,region,y\na,1,north,0\na,2,north,1\nb,3,south,1\n"
    data = table(tmp_path, text, group="region")
    scenario = Scenario(clients=2, partition=Iid())
    found = message(build_federation, data, scenario, Key(0), kind=SettingError)
    assert found.startswith("data.group is about clients as the data have them")
    assert found.endswith("got Iid")


def test_a_group_must_be_the_same_in_all_rows_of_a_client(tmp_path):
    text = "site,x,region,y\na,1,north,0\na,2,south,1\nb,3,south,1\n"
    assert message(table, tmp_path, text, group="region").endswith(
        "every client must have one group in column 'region', got 'north' and 'south' for client "
        "'a'"
    )


def test_a_column_may_say_what_rows_are_for(tmp_path):
    text = "site,x,set,y\na,1,Test,0\na,2,train,1\nb,3,validation,1\nb,4,train,0\na,5,train,0\n"
    data = table(tmp_path, text, split="set", standardise=False)
    assert data.features == ("x",)
    federation = build_federation(data, Scenario(partition=Natural()), Key(0))
    parts = [part.x.flatten().tolist() for part in federation.splits("a")]
    assert parts == [[2, 5], [], [1]]
    assert [part.x.flatten().tolist() for part in federation.splits("b")] == [[4], [3], []]
    assert federation.notices == ()


def test_shares_beside_a_column_of_splits_are_noticed(tmp_path):
    data = table(tmp_path, "site,x,set,y\na,1,test,0\na,2,train,1\nb,3,train,1\n", split="set")
    scenario = Scenario(partition=Natural(), split=(0.6, 0.2, 0.2))
    assert build_federation(data, scenario, Key(0)).notices == (
        "scenario.split = [0.6, 0.2, 0.2] is without effect: the column that data.split names says "
        "what every row is for",
    )


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ("tran,test", "column 'set' must be train, validation or test, got tran"),
        ("train,train", "column 'set' must be test in at least one row, got none"),
        ("test,test", "column 'set' must be train in at least one row, got none"),
        ("train,", "every row must name its split in column 'set', got ''"),
    ],
)
def test_what_a_split_column_may_hold(tmp_path, cells, text):
    one, two = cells.split(",")
    rows = f"site,x,set,y\na,1,{one},0\na,2,{two},1\n"
    assert text in message(table, tmp_path, rows, split="set")


@pytest.mark.parametrize(
    "times",
    [
        ("2026-01-03", "2025-12-31", "2026-01-02", "2026-01-01"),
        ("2026-01-01 12:00", "2026-01-01T09:00:00Z", "2026-01-01 11:30", "2026-01-01 11:00"),
        ("3", "-1", "1.5", "1"),
    ],
)
def test_the_earliest_rows_train_and_the_latest_test(tmp_path, times):
    rows = [f"a,{number},{time},{number % 2}" for number, time in enumerate(times)]
    text = "\n".join(["site,x,date,y", *rows])
    data = table(tmp_path, text, time="date", standardise=False)
    scenario = Scenario(partition=Natural(), split=(0.5, 0.25, 0.25))
    splits = build_federation(data, scenario, Key(0)).splits("a")
    assert [part.x.flatten().tolist() for part in splits] == [[1, 3], [2], [0]]


@pytest.mark.parametrize("cell", ["31.01.2026", "7", "nan-1", "inf"])
def test_times_are_numbers_or_dates_alone(tmp_path, cell):
    text = f"site,x,date,y\na,1,2026-01-31,0\na,2,{cell},1\n"
    found = message(table, tmp_path, text, time="date")
    assert "column 'date' must be numbers alone or dates as 2026-01-31 or" in found


def test_rows_left_out_keep_their_splits_and_times(tmp_path):
    rows = [f"a,{n},{'train' if n % 3 else 'test'},{n % 3}" for n in range(12)]
    data = table(tmp_path, "\n".join(["site,x,set,y", *rows]), split="set", without=(1,))
    assert data.split.tolist() == [2 if n % 3 == 0 else 0 for n in range(12) if n % 3 != 1]


# --- newcomers ------------------------------------------------------------------------------------


def preprocessing(tmp_path, **options):
    made = build(table(tmp_path, HEARTS, drop=("id",), **options)).preprocessing
    return Preprocessing.from_record(json.loads(json.dumps(made.to_record())))


def test_a_newcomer_is_encoded_as_the_run_was(tmp_path, caplog):
    (tmp_path / "new.csv").write_text("pain;age;id;sex;y\ntypical;44;9;f;sick\n?;45;9;x;well\n")
    samples = read_samples(tmp_path / "new.csv", "y", "site", like=preprocessing(tmp_path))
    assert samples.x.tolist() == [[44, 1, 0, 0, 0, 1], [45, 0, 0, 0, 0, 0]]
    assert samples.labels.names == ("sick", "well")
    assert caplog.messages == [
        f"{tmp_path}/new.csv: column 'sex' has categories that the run does not know and counts "
        "as missing: x"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pain,age\ntypical,3\n", "columns must be those of the run, got none called sex"),
        ("pain,age,sex,z\ntypical,3,m,1\n", "(age, sex, pain), got z beside them"),
        ("pain,age,sex\ntypical,old,m\n", "line 2: column 'age' must be a number or missing"),
    ],
)
def test_a_newcomer_that_does_not_fit_is_one_line(tmp_path, text, expected):
    (tmp_path / "new.csv").write_text(text)
    like = preprocessing(tmp_path)
    assert expected in message(read_samples, tmp_path / "new.csv", "y", "site", like=like)


def test_commands_say_what_a_newcomer_has_that_the_run_does_not_know(tmp_path):
    lines = [f"{i},{'ab'[i % 2]},{i % 5},{'mf'[i // 2 % 2]},{i // 2 % 2}" for i in range(40)]
    (tmp_path / "all.csv").write_text("\n".join(["id,site,x,sex,y", *lines]))
    (tmp_path / "run.toml").write_text(
        '[run]\nrounds = 1\nexecutor = "serial"\n[data]\ntable = "all.csv"\nclient = "site"\n'
        'drop = ["id"]\n'
    )
    assert concordfl(tmp_path, "run", "run.toml", "--out", "run").returncode == 0
    (tmp_path / "new.csv").write_text("y,sex,x\n0,m,1\n1,f,2\n0,x,3\n1,,3\n")
    done = concordfl(tmp_path, "adapt", "run", "--data", "new.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("new.csv: column 'sex' has categories that the run does not know")


# --- data frames ----------------------------------------------------------------------------------


def frame_of(text):
    return pd.read_csv(io.StringIO(text))


def test_a_data_frame_is_encoded_as_its_table(tmp_path):
    one = table(tmp_path, HEARTS, drop=("id",))
    frame = frame_of(HEARTS).drop(columns="id")
    other = Memory(given=gather(frame, "site", "y")).load(Key(0))
    assert other.columns == one.columns
    assert other.features == one.features
    assert np.array_equal(other.train.x, one.train.x, equal_nan=True)


def test_frames_by_client_agree_on_categories_in_any_order(tmp_path):
    frame = frame_of(HEARTS).drop(columns="id")
    clients = {
        name: (part.drop(columns=["site", "y"]), part["y"]) for name, part in frame.groupby("site")
    }
    clients["b"] = (clients["b"][0][["pain", "sex", "age"]], clients["b"][1])
    data = Memory(given=gather(clients)).load(Key(0))
    expected = table(tmp_path, HEARTS, drop=("id",))
    assert data.features == expected.features
    assert np.array_equal(data.train.x, expected.train.x, equal_nan=True)


def test_identifiers_in_a_data_frame_are_noticed():
    assert "column 'id' looks like an identifier" in gather(frame_of(HEARTS), "site").notices[0]


def test_dropped_columns_of_a_data_frame_are_left_out():
    frame = frame_of(HEARTS)
    given, without = gather(frame, "site", drop=["id"]), gather(frame.drop(columns="id"), "site")
    assert given.digest() == without.digest()
    assert given.notices == ()
    frames = {
        name: (part.drop(columns=["site", "y"]), part["y"]) for name, part in frame.groupby("site")
    }
    assert gather(frames, drop=["id"]).digest() == without.digest()


@pytest.mark.parametrize(
    ("clients", "drop", "text"),
    [
        (frame_of(HEARTS), "idd", "data.drop must name columns of the data, got 'idd': did you"),
        (frame_of(HEARTS), "y", "data.drop must be other columns than client and label, got 'y'"),
        ({"a": ([[1]], [0])}, "id", "data.drop must be about data frames, got 'id' for others"),
    ],
    ids=["unknown", "label", "arrays"],
)
def test_what_cannot_be_dropped_is_refused(clients, drop, text):
    client = None if isinstance(clients, dict) else "site"
    assert text in message(gather, clients, client, drop=[drop], kind=SettingError)


def test_examples_with_categories_are_read_back_from_a_runs_folder(tmp_path):
    given = gather(frame_of(HEARTS), "site")
    (tmp_path / "examples.npz").write_bytes(given.to_bytes())
    again = read_given(tmp_path / "examples.npz")
    assert again.columns == given.columns
    assert again.notices == given.notices != ()
    assert again.digest() == given.digest()


def test_a_run_on_a_data_frame_predicts_for_frames_with_text(caplog):
    lines = [f"{'ab'[i % 2]},{i % 5},{'mf'[i // 2 % 2]},{i // 2 % 2}" for i in range(60)]
    frame = frame_of("\n".join(["site,x,sex,y", *lines]))
    result = cf.run(clients=frame, client="site", rounds=20, lr=0.5, run={"executor": "serial"})
    assert result.summary["preprocessing"]["features"] == ["x", "sex=f", "sex=m"]
    new = pd.DataFrame({"sex": ["m", "f", "m"], "x": [1, 2, 3]})
    assert result.predict(new).tolist() == [0, 1, 0]
    assert caplog.messages == []
    result.predict(new.assign(sex=["m", "f", "?!"]))
    assert caplog.messages == [
        "X: column 'sex' has categories that the run does not know and counts as missing: ?!"
    ]
    with pytest.raises(DataError, match="column 'x' must be a number or missing, got 'many'"):
        result.predict(new.assign(x=["1", "2", "many"]))


def test_wide_tables_are_read_in_one_pass(tmp_path):
    """1,000 columns took minutes when every column looked at all others' names several times."""
    names = [f"c{number}" for number in range(1000)]
    rows = [f"{'ab'[row]}," + ",".join(["1"] * 1000) + f",{row}" for row in range(2)]
    text = "\n".join([",".join(["site", *names, "y"]), *rows])
    assert len(table(tmp_path, text).features) == 1000


def test_rows_of_plain_numbers_are_read_as_single_cells_are(tmp_path):
    rows = ["1,2.5,-3e-4", "3e38,3e38,1", "nan,1,2", ",1,NA", "1,+.5,7.", "0,1e-50,-0"]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["a,b,c", *rows]) + "\n")
    found = read_csv(path, "y").x
    cells = [["nan" if cell in ("", "NA") else cell for cell in row.split(",")] for row in rows]
    np.testing.assert_array_equal(found, np.array(cells).astype(np.float64).astype(np.float32))
