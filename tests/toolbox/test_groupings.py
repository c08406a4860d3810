"""How many groups there are."""

import pytest
import torch

from concordfl.toolbox.groupings import smallest_number

YES, NO = 1e-6, 0.5  # p-values


def beaten(*pairs):
    """p-values of all pairs of 1 to 4 groups, by their places: those given are beaten."""
    every = [(less, more) for more in range(4) for less in range(more)]
    return {(less, more): YES if (less + 1, more + 1) in pairs else NO for less, more in every}


@pytest.mark.parametrize(
    ("pairs", "number"),
    [
        ((), 2),
        (((2, 3), (2, 4)), 3),
        (((2, 3), (2, 4), (3, 4)), 4),
        (((2, 4),), 3),  # which four groups do not beat
    ],
)
def test_the_smallest_number_that_no_larger_one_beats(pairs, number):
    assert smallest_number(torch.full((3,), YES), beaten(*pairs), YES) == number


def test_it_begins_with_the_first_number_that_is_significant():
    assert smallest_number(torch.tensor([NO, YES, YES]), beaten((3, 4)), YES) == 4
    assert smallest_number(torch.tensor([NO, YES, YES]), beaten(), YES) == 3


def test_a_number_that_is_not_significant_is_passed_over():
    assert smallest_number(torch.tensor([YES, NO, YES]), beaten((2, 4)), YES) == 4
    assert smallest_number(torch.tensor([YES, NO, NO]), beaten((2, 4)), YES) == 2


def test_no_concept_is_one_group():
    assert smallest_number(torch.full((3,), YES), beaten(), 0.06) == 1
