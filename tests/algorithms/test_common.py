"""Checks that every registered method passes, and a toy that uses all of the contract."""

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
import torch

import toys
from concordfl import Algorithm
from concordfl.algorithms import ALGORITHMS
from concordfl.core import Classification, Predictor, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.client_states import MemoryStates
from concordfl.engine.evaluate import EVALUATION_STEPS
from concordfl.engine.executors import Serial
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder

METHODS: dict[str, Algorithm] = toys.all_methods() | toys.other_readings() | {"toy": toys.Toy()}
SOMETIMES_KEPT = {"averages"}  # by FedVC, with moving_averages = "kept"
PLAN = Plan(rounds=4, cohort=4, evaluate_every=2, checkpoint_seconds=0, noise_seed=0)


@pytest.fixture(scope="module", params=METHODS)
def method(request) -> Algorithm:
    return METHODS[request.param]


@pytest.fixture(scope="module")
def straight(method):
    return toys.result(toys.experiment(method, plan=PLAN))


SAME = ("parameters_sha256", "states_sha256", "bytes", "final", "selected", "clusters")


def test_executors_agree(method, straight):
    spread = toys.result(toys.experiment(method, plan=PLAN, executor="processes", workers=2))
    assert {key: spread[key] for key in SAME} == {key: straight[key] for key in SAME}


def test_same_seed_same_result_other_seed_another(method, straight):
    again = toys.result(toys.experiment(method, plan=PLAN))
    assert {key: again[key] for key in SAME} == {key: straight[key] for key in SAME}
    other = toys.result(toys.experiment(method, plan=replace(PLAN, seed=1)))
    assert (other["parameters_sha256"], other["states_sha256"]) != (
        straight["parameters_sha256"],
        straight["states_sha256"],
    )


def test_stopping_after_every_round_is_a_straight_run(method, straight, tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        for _ in range(len(toys.experiment(method, plan=PLAN).turns) + 1):
            made = toys.experiment(method, plan=PLAN, folder=folder)
            made.observe = lambda event: (_ for _ in ()).throw(KeyboardInterrupt)
            progress = made.restore()
            if progress.round == len(made.turns):
                break
            with pytest.raises(KeyboardInterrupt):
                made.run(progress)
        summary = made.summary(progress)
    assert {key: summary[key] for key in SAME} == {key: straight[key] for key in SAME}


def test_the_order_of_clients_does_not_matter(method, straight):
    data = toys.federation()
    turned = replace(
        data,
        bounds=dict(reversed([*data.bounds.items()])),
        groups=dict(reversed(data.groups.items())),
    )
    summary = toys.result(toys.experiment(method, turned, plan=PLAN))
    assert {key: summary[key] for key in SAME} == {key: straight[key] for key in SAME}


def test_missing_replies(method):
    summary = toys.result(toys.experiment(method, plan=replace(PLAN, rounds=6, dropout=0.4)))
    if method.classifies:
        assert 0 <= summary["final"]["local_accuracy"] <= 1
    if method.scores_samples:
        assert np.isfinite(summary["final"]["local_log_likelihood"])


def test_networks_with_statistics_and_drop_out(method):
    """Buffers travel and are kept as parameters are."""
    made = toys.experiment(
        method, plan=Plan(rounds=3, cohort=4, evaluate_every=3), network="toys:batch_norm_net"
    )
    summary = toys.result(made)
    spread = toys.experiment(
        method,
        plan=Plan(rounds=3, cohort=4, evaluate_every=3),
        network="toys:batch_norm_net",
        executor="processes",
    )
    assert toys.result(spread)["parameters_sha256"] == summary["parameters_sha256"]


def test_one_client(method):
    summary = toys.result(toys.experiment(method, toys.federation(clients=1), plan=Plan(rounds=2)))
    assert summary["clients"] == 1


def test_one_example_per_client(method):
    rng = np.random.default_rng(0)

    def one(count: int) -> Arrays:
        return Arrays(rng.normal(size=(count, 5)).astype(np.float32), rng.integers(3, size=count))

    data = Federation.build(
        {f"c{i}": (one(1), one(0), one(1)) for i in range(3)}, {"new": (one(1), one(0), one(1))}, 3
    )
    summary = toys.result(toys.experiment(method, data, plan=Plan(rounds=2)))
    if method.classifies:
        assert summary["final"]["local_accuracy"] in (0, 1 / 3, 2 / 3, 1)


class Watched(Serial):
    """Keeps what every client was asked, had before and after, and answered by itself."""

    def perform(self, order):
        if order.step in EVALUATION_STEPS:
            return super().perform(order)
        before = {id: self.states.get(id) for id in order.clients}
        node, states = self._node, MemoryStates()
        for id, state in before.items():
            if state is not None:
                states.put(id, state)
        states.commit()
        node._states = states
        individual = node.perform(order._replace(wanted="replies"))
        after = {id: states.get(id) for id in order.clients}
        node._states = self.states
        self.seen.append((order, before, after, individual))
        return super().perform(order)


@pytest.fixture(scope="module")
def watched(method):
    made = toys.experiment(method, plan=PLAN)
    made.executor.__class__ = Watched
    made.executor.seen = []
    progress = made.run(made.start())
    return made, progress, made.executor.seen


def tensors(value: object) -> Iterator[torch.Tensor]:
    return (
        leaf for leaf in tree.leaves(value) if isinstance(leaf, torch.Tensor) and leaf.numel() > 1
    )


def entries_of(state: dict | tuple) -> dict:
    """A state's entries by name; anything that is neither a dict nor a NamedTuple fails here."""
    return state if isinstance(state, dict) else state._asdict()


def test_private_state_is_in_no_reply(watched):
    made, _, seen = watched
    for _, before, after, outcome in seen:
        for id, reply in outcome.value.items():
            kept = before[id] or after[id]
            entries = entries_of(tree.unpack(kept)) if kept else {}
            public = made.algorithm.public_state - SOMETIMES_KEPT
            assert public <= set(entries) or not entries
            for private in tensors(
                {
                    key: value
                    for key, value in entries.items()
                    if key not in made.algorithm.public_state
                }
            ):
                assert not any(
                    private.shape == sent.shape and torch.equal(private, sent)
                    for sent in tensors(reply)
                )


def test_counted_bytes_are_those_of_the_trees(watched):
    _, progress, seen = watched
    up = sum(tree.num_bytes(reply) for _, _, _, outcome in seen for reply in outcome.value.values())
    down = sum(
        tree.num_bytes(order.broadcast) * len(order.clients)
        if order.each is None
        else sum(map(tree.num_bytes, order.each.values()))
        for order, _, _, _ in seen
    )
    published = sum(
        size * len(progress.publications.delivered[name])
        for name, size in progress.publications.size.items()
    )
    assert (progress.traffic.up, progress.traffic.down) == (up, down + published)


def test_trees_serialise(watched):
    _, progress, seen = watched
    for value in (
        progress.server,
        *(order for order, _, _, _ in seen),
        *(outcome for _, _, _, outcome in seen),
    ):
        assert tree.pack(tree.unpack(tree.pack(value))) == tree.pack(value)


def test_predictions_are_probabilities(watched, method):
    if not method.classifies:
        pytest.skip("it predicts no labels")
    made, progress, _ = watched
    cases = [(id, False) for id in made.federation.participants]
    if method.accepts_new_clients:
        cases += [(id, True) for id in made.federation.held_out]
    for id, new in cases:
        splits = made.federation.splits(id)
        packed = None if new else made.executor.states.get(id)
        client = toys.Client(
            id,
            splits.train,
            objective=Classification(3),
            model=made.setup.model,
            training=made.setup.training,
            seed=0,
            round=3,
            published=lambda name: tree.unpack(progress.publications.data[name]),
            has_state=packed is not None,
        )
        message = method.message(progress.server, None if new else id)
        state = None if packed is None else tree.unpack(packed)
        predictor = Predictor.prepare(method, client, state, message, new=new)
        probabilities = predictor.predictions(splits.test)
        assert probabilities.shape == (len(splits.test), 3)
        assert probabilities.min() >= 0
        assert torch.allclose(
            probabilities.sum(1), torch.ones(len(splits.test), dtype=probabilities.dtype), atol=1e-5
        )


NETWORK = ("encoder.1.weight", "encoder.1.bias", "head.weight", "head.bias")
GAUSSIANS = [
    *("pi", "gaussians.means", "gaussians.covariances", "shift", "candidates", "centres"),
    "reports.total",
]
WIDE = [
    *("head.weight", "head.bias", "encoder.encoders.0.1.weight", "encoder.encoders.0.1.bias"),
    *("encoder.encoders.1.1.weight", "encoder.encoders.1.1.bias"),
]


def several(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{k}.{name}" for k in range(count) for name in NETWORK]


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "apfl": list(NETWORK),
        "cfl": several("models.", 4),
        "fedconcat": WIDE,
        "fedconcat-id": WIDE,
        "fedconceptem": several("models.", 3)
        + [f"{table}.{k}" for table in ("log_prior", "totals") for k in range(3)],
        "fedgmm": several("models.", 3) + GAUSSIANS,
        "fedgmm-unsupervised": GAUSSIANS,
        "fedsoft": several("", 3),
        "fesem": several("centres.", 3),
    }.items(),
)
def test_names_in_the_saved_model(name, expected):
    """Those who load `models/final.safetensors` rely on them."""
    made = toys.experiment(METHODS[name], plan=PLAN)
    saved = METHODS[name].deployed(made.run(made.start()).server)
    assert list(saved) == expected
    assert all(isinstance(value, torch.Tensor) for value in saved.values())


def test_settings_go_through_toml(method):
    table = tomllib.loads(tomli_w.dumps(method.to_table()))
    assert type(method).from_table(table) == method


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_says_what_it_is(name):
    about = ALGORITHMS[name].about
    assert "about" in vars(ALGORITHMS[name]), "not the one it inherits"
    assert all((about.title, about.paper, about.travels, about.private, about.cost))
    assert name == about.title.lower().replace(" ", "-")
