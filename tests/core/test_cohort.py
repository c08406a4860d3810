import pytest

import toys
from concordfl import Cohort, Key, Replies, SettingError
from concordfl.core import NoReplies
from concordfl.core.cohort import Answer


def cohort(ids=("b", "a"), missing=()):
    asked = []

    def ask(request):
        asked.append(request)
        return Answer(
            {id: 1 for id in request.ids if id not in missing},
            tuple(id for id in missing if id in request.ids),
        )

    made = Cohort(
        ids,
        round=3,
        task=None,
        training=None,
        population=9,
        key=Key(0),
        ask=ask,
        publish=lambda name, tree: None,
    )
    return made, asked


STEP = toys.Toy().count


def test_ids_are_sorted_and_only_named_clients_are_asked():
    made, asked = cohort()
    assert made.ids == ("a", "b")
    replies = made.run(STEP, each={"b": 1})
    assert asked[0].ids == ("b",)
    assert isinstance(replies, Replies)
    assert dict(replies) == {"b": 1}
    assert len(replies) == 1


def test_a_client_that_does_not_answer_leaves_the_round():
    made, asked = cohort(ids="abc", missing="b")
    assert made.run(STEP).missing == ("b",)
    made.sum(STEP)
    assert asked[1].ids == ("a", "c")


def test_nobody_left():
    made, _ = cohort(missing=("a", "b"))
    with pytest.raises(NoReplies, match="none of 2 clients answered count"):
        made.sum(STEP)
    with pytest.raises(NoReplies, match="no client was left"):
        made.sum(STEP)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda made: made.sum(len), "@client_step, got 'len'"),
        (lambda made: made.sum(STEP, broadcast=1, each={"a": 1}), "either `broadcast` or `each`"),
        (
            lambda made: made.run(STEP, each={"z": 1}),
            r"must name clients of this cohort, got \['z'\]",
        ),
    ],
)
def test_wrong_use_is_refused(call, message):
    with pytest.raises(SettingError, match=message):
        call(cohort()[0])


def test_random_keys_differ_by_purpose():
    made, _ = cohort()
    assert made.random("a") != made.random("b")
