import pytest

import toys
from concordfl import Aggregation, Cohort, Key, Replies, SettingError
from concordfl.algorithms import FedAvg
from concordfl.core import Missing, NoReplies, Order, Outcome, ServerStep
from concordfl.core.protocol import DROPPED_OUT


def cohort(ids=("b", "a"), missing=(), **more):
    asked = []

    def ask(order):
        asked.append(order)
        answered = [id for id in order.clients if id not in missing]
        lost = {id: Missing(DROPPED_OUT) for id in order.clients if id in missing}
        return Outcome(dict.fromkeys(answered, 1), dict.fromkeys(answered, 8), lost)

    made = Cohort(
        ids,
        algorithm=toys.Toy(),
        order=Order(stage="train", round=4, stage_round=3),
        task=None,
        training=None,
        population=9,
        key=Key(0),
        ask=ask,
        publish=lambda name, tree: None,
        server_step=ServerStep(Aggregation(), {}, ()),
        **more,
    )
    return made, asked


STEP = toys.Toy().count


def test_ids_are_sorted_and_only_named_clients_are_asked():
    made, asked = cohort()
    assert made.ids == ("a", "b")
    replies = made.run(STEP, each={"b": 1})
    assert asked[0].clients == ("b",)
    assert isinstance(replies, Replies)
    assert dict(replies) == {"b": 1}
    assert len(replies) == 1


def test_a_client_that_does_not_answer_leaves_the_round():
    made, asked = cohort(ids="abc", missing="b")
    assert made.run(STEP).missing == {"b": Missing(DROPPED_OUT)}
    made.sum(STEP)
    assert asked[1].clients == ("a", "c")


def test_nobody_left():
    made, _ = cohort(missing=("a", "b"))
    with pytest.raises(NoReplies, match="0 of 2 clients answered count, at least 1 must"):
        made.sum(STEP)
    with pytest.raises(NoReplies, match="no client was left"):
        made.sum(STEP)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda made: made.sum(len), "@client_step, got 'len'"),
        (lambda made: made.sum(FedAvg().train), "steps of its method, got 'train'"),
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


def test_an_order_names_its_step_and_what_is_wanted():
    made, asked = cohort()
    made.sum(STEP, broadcast=5)
    made.run(STEP, each={"a": 1})
    whole, single = asked
    assert (whole.step, whole.stage, whole.round, whole.stage_round) == ("count", "train", 4, 3)
    assert (whole.wanted, whole.broadcast, whole.each) == ("total", 5, None)
    assert (single.wanted, single.broadcast, single.each) == ("replies", None, {"a": 1})


def test_a_quorum_voids_the_round():
    made, _ = cohort(ids="abcd", missing="b", min_replies=3)
    made.sum(STEP)
    assert made.ids == ("a", "c", "d")
    made, _ = cohort(ids="abcd", missing="bc", min_replies=3)
    with pytest.raises(NoReplies, match="2 of 4 clients answered count, at least 3 must"):
        made.sum(STEP)
    made, _ = cohort(ids="abcd", min_replies=3)
    made.run(STEP, each={"a": 1})  # who is not asked cannot be missed
