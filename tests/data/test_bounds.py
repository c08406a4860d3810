"""BoundsTable: a dict of bounds in all but its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concordfl.data.bounds import BoundsTable

BOUNDS = st.tuples(*[st.integers(0, 2**40)] * 4)


@given(st.dictionaries(st.text(max_size=4), BOUNDS, max_size=20), st.text(max_size=4))
def test_it_is_the_mapping_it_was_made_of(bounds, id):
    table = BoundsTable(bounds)
    assert table == bounds
    assert list(table) == sorted(bounds)
    assert len(table) == len(bounds)
    assert table.get(id) == bounds.get(id)


def test_an_unknown_client():
    table = BoundsTable({"a": (0, 1, 2, 3)})
    for id in ("", "b"):
        with pytest.raises(KeyError):
            table[id]


def test_its_numbers_are_plain_ones():
    assert [type(number) for number in BoundsTable({"a": (0, 1, 2, 3)})["a"]] == [int] * 4
