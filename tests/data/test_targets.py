"""What is to be predicted, as users' files show it: classes, numbers, several labels."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

import concordfl as cf
from concordfl import DataError, SettingError, assemble
from concordfl.data import Arrays, Federation
from concordfl.data.preprocessing import Preprocessing
from concordfl.inputs import load_config

ROWS = 60


def write_table(folder, **columns):
    """One table of three clients; a feature, and the columns that are given."""
    rng = np.random.default_rng(0)
    columns = {"client": list("abc") * (ROWS // 3), "x": rng.normal(size=ROWS), **columns}
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    (folder / "all.csv").write_text("\n".join(lines))
    return {"table": str(folder / "all.csv")}


def federation(data, **sections):
    return assemble.make_federation(load_config({"data": data, **sections}))


def values(count=ROWS):
    return np.random.default_rng(1).normal(50, 7, count).round(3).tolist()


# --- what "auto" makes of a target ----------------------------------------------------------------


def test_a_float_target_never_becomes_classes(tmp_path):
    made = federation(write_table(tmp_path, y=values()))
    assert (made.kind, made.num_classes) == ("regression", 0)
    assert made.y.dtype.is_floating_point
    assert made.preprocessing.classes == ()


def test_whole_numbers_and_words_stay_classes(tmp_path):
    for labels in ([1, 2, 3], ["1.0", "2", "3.0"], ["yes", "no", "1.5"]):
        made = federation(write_table(tmp_path, y=labels * (ROWS // 3)))
        assert made.kind == "classification"
        assert made.num_classes == 3


def test_many_whole_numbers_must_be_said_to_be_classes_or_values(tmp_path):
    data = write_table(tmp_path, y=[20 + row % 30 for row in range(ROWS)])
    with pytest.raises(DataError, match=r"got 30 different ones .*: say \[objective\] kind = "):
        federation(data)
    assert federation(data, objective={"kind": "classification"}).num_classes == 30
    assert federation(data, objective={"kind": "regression"}).kind == "regression"


def test_many_classes_that_count_from_0_or_1_are_classes():
    rng = np.random.default_rng(0)
    for first in (0, 1):
        y = first + np.tile(np.arange(25), 12)
        made = assemble.make_federation(load_config(clients={"a": (rng.normal(size=(300, 2)), y)}))
        assert made.num_classes == 25


def test_a_word_among_many_numbers_is_a_mistake(tmp_path):
    with pytest.raises(DataError, match="numbers throughout or classes, got unknown beside 5"):
        federation(write_table(tmp_path, y=[*values(ROWS - 1), "unknown"]))


def test_numbers_may_be_said_to_be_classes(tmp_path):
    data = write_table(tmp_path, y=[0.5, 1.5, 2.5] * (ROWS // 3))
    made = federation(data, objective={"kind": "classification"})
    assert made.preprocessing.classes == ("0.5", "1.5", "2.5")


@pytest.mark.parametrize(
    ("columns", "sections", "message"),
    [
        ({"y": ["a", "b", "c"] * 20}, {"objective": {"kind": "regression"}}, "must be numbers"),
        ({"y": [0, 1] * 30}, {"objective": {"kind": "multi-label"}}, "needs a column of 0 and 1"),
        ({"y": [*values(59), "inf"]}, {}, "numbers throughout or classes, got inf"),
        ({"y": values()}, {"objective": {"kind": "classes"}}, "kind must be one of"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, columns, sections, message):
    with pytest.raises((DataError, SettingError), match=message) as error:
        federation(write_table(tmp_path, **columns), **sections)
    assert "\n" not in str(error.value)


def test_labels_are_left_out_of_classes_only(tmp_path):
    data = write_table(tmp_path, y=values())
    with pytest.raises(SettingError, match="data.without must name labels of the data"):
        federation(data | {"without": [1]})


# --- several columns ------------------------------------------------------------------------------


def test_several_columns_of_0_and_1_are_labels(tmp_path):
    data = write_table(tmp_path, a=[0, 1] * 30, b=[1, 1, 0] * 20)
    made = federation(data | {"label": ["a", "b"]})
    assert (made.kind, made.preprocessing.targets) == ("multi-label", ("a", "b"))
    assert made.preprocessing.features == ("x",)
    shares = made.y.double().mean(0).tolist()
    assert shares == pytest.approx([1 / 2, 2 / 3])


def test_several_columns_of_numbers_are_targets(tmp_path):
    data = write_table(tmp_path, a=values(), b=[0, 1] * 30)
    made = federation(data | {"label": ["a", "b"]})
    assert made.kind == "regression"
    assert made.y.shape == (ROWS, 2)
    names = made.describe()["clients"][0]["quantiles"]
    assert list(names) == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "sections", "message"),
    [
        ({"a": [0, 2] * 30, "b": [0, 1] * 30}, {}, "may be several targets or a mistake"),
        ({"a": [0, 2] * 30, "b": [0, 1] * 30}, {"kind": "multi-label"}, "must be 0 or 1, got 2"),
        ({"a": [0, 1] * 30, "b": [1, 0] * 30}, {"kind": "classification"}, "needs one column"),
        ({"a": [0, "no"] * 30, "b": [0, 1] * 30}, {}, "line 3: .* numbers, got 'no' in column 'a'"),
        ({"a": [0, ""] * 30, "b": [0, 1] * 30}, {}, "line 3: every row must have a label"),
        ({"a": [0, 1] * 30}, {}, "must have a column called 'b'"),
    ],
)
def test_several_columns_that_do_not_fit_are_one_line(tmp_path, columns, sections, message):
    data = write_table(tmp_path, **columns) | {"label": ["a", "b"]}
    with pytest.raises((DataError, SettingError), match=message):
        federation(data, objective=sections)


def test_rows_of_targets_in_npz_files(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "clients").mkdir()
    for name in "ab":
        labels = rng.integers(2, size=(20, 3))
        np.savez(tmp_path / "clients" / f"{name}.npz", x=rng.normal(size=(20, 2)), y=labels)
    data = {"folder": str(tmp_path / "clients")}
    assert federation(data).kind == "multi-label"
    np.savez(tmp_path / "clients" / "c.npz", x=rng.normal(size=(20, 2)), y=labels[:, :2])
    with pytest.raises(DataError, match="client 'c': targets must be 3 per example .*, got 2"):
        federation(data)


def test_a_column_of_one_target_is_a_target():
    rng = np.random.default_rng(0)
    given = load_config(clients={"a": (rng.normal(size=(20, 2)), rng.normal(size=(20, 1)))})
    assert assemble.make_federation(given).y.ndim == 1


def test_several_labels_from_python_in_every_form():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(20, 2)).astype(np.float32), rng.integers(2, size=(20, 2))
    tensors = torch.from_numpy(x), torch.from_numpy(labels)
    frame = pd.DataFrame({"client": "a", "x": x[:, 0], "b": labels[:, 0], "c": labels[:, 1]})
    forms = [
        {"clients": {"a": (x, labels)}},
        {"clients": {"a": (x, labels.tolist())}},
        {"clients": {"a": TensorDataset(*tensors)}},
        {"clients": {"a": Subset(TensorDataset(*tensors), range(20))}},
        {"clients": frame, "label": ["b", "c"]},
    ]
    for form in forms:
        made = assemble.make_federation(load_config(**form))
        assert made.kind == "multi-label"
        assert made.y.sum(0).tolist() == labels.sum(0).tolist()
    assert made.preprocessing.targets == ("b", "c")
    with pytest.raises(DataError, match="column of features beside 'client' and 'b', 'x', 'c'"):
        load_config(clients=frame, label=["b", "x", "c"])


# --- a federation of numbers ----------------------------------------------------------------------


def test_targets_are_standardised_by_the_participants_training_examples(tmp_path):
    data = write_table(tmp_path, y=values())
    made = federation(data, scenario={"hold_out": ["c"]})
    train = np.concatenate([made.splits(id).train.y.numpy() for id in made.participants])
    assert (train.mean(), train.std()) == pytest.approx((0, 1), abs=1e-5)
    standard = made.preprocessing.target_standard
    everybody = made.y.numpy() * standard.deviation + standard.mean
    assert sorted(everybody.tolist()) == pytest.approx(sorted(values()), rel=1e-6)


def test_a_description_gives_quantiles_in_the_targets_own_unit(tmp_path):
    made = federation(write_table(tmp_path, y=values()), scenario={"split": [1.0, 0, 0]})
    first = made.describe()["clients"][0]
    expected = np.quantile(values()[::3], (0, 0.25, 0.5, 0.75, 1))
    assert first["quantiles"]["y"] == pytest.approx(expected, rel=1e-6)
    assert "labels" not in first


def test_a_federation_of_another_unit_is_another_one(tmp_path):
    fingerprints = {
        federation(write_table(tmp_path, y=[scale * y for y in values()])).fingerprint()
        for scale in (1, 1000)
    }
    assert len(fingerprints) == 2


def test_a_federation_built_by_hand_knows_its_targets_by_their_type():
    x = np.zeros((4, 2), np.float32)
    kinds = {}
    for y in (np.zeros(4, int), np.zeros(4), np.zeros((4, 2)), np.zeros((4, 2), int)):
        part = Arrays(x, y)
        made = Federation.build({"a": (part, part, part)}, {}, 1 if y.ndim == 1 else 0)
        kinds[y.dtype.kind, y.ndim] = made.kind
    assert list(kinds.values()) == ["classification", "regression", "regression", "multi-label"]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([0.0, np.nan]), "client 'a', train split: targets must be finite, got nan"),
        (np.array([[0, 1], [0, 2]]), r"labels must be 0 or 1 each, got \[0, 2\]"),
    ],
)
def test_a_federation_refuses_targets_of_no_kind(y, message):
    part = Arrays(np.zeros((2, 2), np.float32), y)
    with pytest.raises(DataError, match=message):
        Federation.build({"a": (part, part, part)}, {}, 0)


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"partition": {"kind": "dirichlet-by-class"}, "clients": 2}, "others are iid, natural"),
        ({"shifts": [{"kind": "label-map"}]}, "not be about classes .* got LabelMap"),
        ({"shifts": [{"kind": "label-noise"}]}, "not be about classes .* got LabelNoise"),
    ],
)
def test_scenarios_of_classes_are_refused_for_numbers(tmp_path, scenario, message):
    data = write_table(tmp_path, y=values())
    with pytest.raises(SettingError, match=message):
        federation(data, scenario=scenario)


def test_how_targets_were_read_is_read_back_from_a_summary(tmp_path):
    data = write_table(tmp_path, a=values(), b=values()[::-1]) | {"label": ["a", "b"]}
    made = federation(data).preprocessing
    again = Preprocessing.from_record(made.to_record())
    assert (again.kind, again.targets) == (made.kind, made.targets)
    assert np.array_equal(again.target_standard.mean, made.target_standard.mean)
    for change in ({"objective": "ranking"}, {"targets": []}, {"targets": ["a", "b", "c"]}):
        with pytest.raises(DataError, match="preprocessing"):
            Preprocessing.from_record(made.to_record() | change)


# --- commands -------------------------------------------------------------------------------------


def test_a_table_of_numbers_through_all_commands(tmp_path):
    from command import concordfl

    x = np.random.default_rng(0).normal(size=ROWS)
    write_table(tmp_path, x=x, price=(100 + 20 * x).round(3))
    run = '[data]\ntable = "all.csv"\nlabel = "price"\n[run]\nrounds = 2\nexecutor = "serial"\n'
    (tmp_path / "run.toml").write_text(run)
    preview = concordfl(tmp_path, "run", "run.toml", "--dry-run")
    assert preview.returncode == 0
    assert "least, middle, most" in preview.stdout
    done = concordfl(tmp_path, "run", "run.toml", "--out", "run")
    assert "RMSE" in done.stdout
    assert concordfl(tmp_path, "predict", "run", "--data", "all.csv", "--client", "a").stdout
    predicted = (tmp_path / "run/predictions").glob("*.csv")
    assert next(predicted).read_text().startswith("sample,label,prediction(price)\n0,")
    adapted = concordfl(tmp_path, "adapt", "run", "--data", "all.csv", "--client", "new")
    assert "RMSE" in adapted.stdout
    refused = concordfl(
        tmp_path, "compare", "run.toml", "--algorithms", "fedavg,fedlc", "--out", "table"
    )
    assert refused.returncode == 2
    assert "fedlc is for classification, got data for regression" in refused.stderr
    assert not list((tmp_path / "table").glob("*/summary.json"))


def test_a_users_own_method_is_for_classes_unless_it_says_more():
    class Own(cf.Algorithm):
        def init_server(self, task, seed):
            return task.model.init(seed)

        def round(self, server, cohort):
            return server

    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(SettingError, match="is for classification, got data for regression"):
        cf.run(clients={"a": (x, x[:, 0])}, algorithm=Own())
