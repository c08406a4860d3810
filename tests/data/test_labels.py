"""Labels: exact, and not dearer than their length."""

import tracemalloc

import numpy as np
import pytest

from concordfl import Key
from concordfl.data.labels import Labels, class_name, sort_classes
from concordfl.data.own import Folder, Table

LARGE = [2**53, 2**53 + 1, 2**53 + 2, 2**63 + 1]  # a 64-bit float takes some of them for the same


def test_whole_numbers_stay_exact_in_tables(tmp_path):
    rows = [f"n,{number},{label}" for number, label in enumerate(LARGE * 2)]
    (tmp_path / "all.csv").write_text("\n".join(["client,x,y", *rows]))
    data = Table(table=str(tmp_path / "all.csv")).load(Key(0))
    assert data.classes == tuple(map(str, LARGE))
    assert data.train.y.tolist() == [0, 1, 2, 3] * 2


def test_whole_numbers_stay_exact_in_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array(LARGE, dtype=np.uint64))
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 2)), y=np.array([-1.0, 2.5]))
    data = Folder(folder=str(tmp_path)).load(Key(0))
    assert data.classes == ("-1", "2.5", *map(str, LARGE))
    assert data.train.y.tolist() == [2, 3, 4, 5, 0, 1]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1, "1"),
        (1.0, "1"),
        (True, "1"),
        ("1", "1"),
        ("1.0", "1"),
        (b"1e0", "1"),
        ("-0", "0"),
        (0.5, "0.5"),
        ("0.50", "0.5"),
        ("9007199254740993.0", "9007199254740993"),
        ("1_2", "1_2"),
        ("inf", "inf"),
        ("1e999", "1e999"),
        ("1e-999", "1e-999"),
        ("yes", "yes"),
        (" 7", "7"),
    ],
)
def test_names_of_classes(value, name):
    assert class_name(value) == name


def test_a_million_digits_are_no_number():
    assert class_name("9" * 5000) == "9" * 5000


def test_classes_are_ordered_as_numbers_if_all_are_numbers():
    assert sort_classes(["10", "9", "-1", "2.5"]) == ("-1", "2.5", "9", "10")
    assert sort_classes(["10", "9", "nine"]) == ("10", "9", "nine")


def test_words_that_look_like_the_same_number_are_one_class_beside_other_words(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,1\n2,1.0\n3,none of these\n")
    data = Folder(folder=str(tmp_path)).load(Key(0))
    assert data.classes == ("1", "none of these")


def test_joining_numbers_names_once():
    joined = Labels.join([Labels.of("ab"), Labels.of("ca"), Labels.of("")])
    assert joined.names == ("a", "b", "c")
    assert joined.index.tolist() == [0, 1, 2, 0]
    assert joined.number({"a": 7, "b": 8, "c": 9}).tolist() == [7, 8, 9, 7]


def test_one_long_name_costs_no_more_than_its_length(tmp_path):
    """An array of text would make every label (and client) of 2,000 as long as the longest."""
    lines = ["client,x,y", *(f"n,{number},a" for number in range(2000))]
    lines.append("m" * 100_000 + ",1," + "b" * 100_000)
    (tmp_path / "all.csv").write_text("\n".join(lines))
    tracemalloc.start()
    data = Table(table=str(tmp_path / "all.csv")).load(Key(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.train.y) == 2001
    assert peak < 30e6


def test_parts_of_one_table_are_joined_by_looking_at_its_names_once():
    class Counted(tuple):
        looks = 0

        def __iter__(self):
            Counted.looks += 1
            return super().__iter__()

    names = Counted(f"{number}.5" for number in range(50))
    whole = Labels(names, np.arange(50)[::-1].copy())
    parts = [whole.take([number]) for number in range(50)]
    joined = Labels.join([*parts, Labels(("x", "3.5"), np.array([1, 0]))])
    assert Counted.looks <= 2
    found = [joined.names[index] for index in joined.index]
    assert found == [*(f"{number}.5" for number in range(49, -1, -1)), "3.5", "x"]
