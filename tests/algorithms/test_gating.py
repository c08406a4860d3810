"""Concord's gate: heads that share the inputs among them, where a network has nothing but heads."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.mixture import GaussianMixture

import toys
from concordfl import SettingError, Training
from concordfl.algorithms import Concord
from concordfl.algorithms.gating import FEWEST, Gate, GatesInputs, Held, _held, _m_step, _settled
from concordfl.core import Examples, Key, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.evaluate import EVALUATION_STEPS
from concordfl.engine.executors import Serial
from concordfl.engine.plan import Plan
from concordfl.toolbox import clustering
from concordfl.toolbox.gaussian import Gaussians


def two_rules(clients=12, examples=60, seed=0, rules=2):
    """Two clouds of inputs, mixed differently by every client; in one of them labels are reversed
    if there are two rules.
    """
    rng = np.random.default_rng(seed)
    centres = np.array([[-4.0, 0, 0, 0], [4.0, 0, 0, 0]])

    def draw(count, share):
        cloud = (rng.uniform(size=count) < share).astype(int)
        x = centres[cloud] + rng.normal(size=(count, 4))
        y = (x[:, 1] > 0).astype(np.int64)
        return Arrays(x.astype(np.float32), np.where(cloud == 1, 1 - y, y) if rules == 2 else y)

    def client():
        share = rng.uniform()
        return draw(examples, share), draw(10, share), draw(40, share)

    made = {f"client-{number:02d}": client() for number in range(clients + 2)}
    ids = list(made)
    return Federation.build(
        {id: made[id] for id in ids[:clients]}, {id: made[id] for id in ids[clients:]}, 2
    )


def unequal_cells(clients=12, examples=400):
    """Two clouds in which the same class is rare, or not; inputs tell little of it."""
    rng = np.random.default_rng(0)

    def draw(count, share):
        cloud = (rng.uniform(size=count) < share).astype(int)
        y = (rng.uniform(size=count) < np.array([0.03, 0.5])[cloud]).astype(np.int64)
        towards = (2 * y - 1) * np.array([1, -1])[cloud]
        x = np.stack([8.0 * cloud - 4, towards, 0 * y, 0 * y], 1) + rng.normal(size=(count, 4))
        return Arrays(x.astype(np.float32), y)

    def client():
        share = rng.uniform()
        return draw(examples, share), draw(10, share), draw(10, share)

    return Federation.build({f"client-{number:02d}": client() for number in range(clients)}, {}, 2)


def wider(data, width):
    """The same with columns that are 0."""

    def padded(splits):
        parts = [getattr(splits, name) for name in ("train", "validation", "test")]
        return tuple(
            Arrays(torch.nn.functional.pad(part.x, (0, width - part.x.shape[1])).numpy(), part.y)
            for part in parts
        )

    return Federation.build({id: padded(data.splits(id)) for id in data.participants}, {}, 2)


def play(method, data, *, network="linear", rounds=3, **plan):
    made = toys.experiment(
        method,
        data,
        plan=Plan(rounds=rounds, evaluate_every=rounds, **plan),
        training=Training(lr=0.1, batch_size=16, momentum=0.0, epochs=1),
        network=network,
    )
    return made, made.run(made.start())


def first_client(made, progress):
    """The method, a participant, and what it is sent."""
    method, id = made.setup.algorithm, made.federation.participants[0]
    examples = made.federation.splits(id).train
    client = made.executor._node._client(id, examples, 0, has_state=True)
    return method, client, method.message(progress.server, id)


@pytest.mark.parametrize("seed", range(3))
def test_one_rule_for_every_cloud_of_inputs(seed):
    """No linear rule is right for both; clients, also new ones, are served by what an input is."""
    data = two_rules(seed=seed)
    made, progress = play(Concord(), data, seed=seed)
    assert progress.server.gate == Gate(is_used=True)
    assert made.records[-1]["server"]["gated"] is True
    assert made.records[-1]["local"]["accuracy"] > 0.9
    assert made.records[-1]["global"]["accuracy"] > 0.9
    alone, _ = play(Concord(gate=False), data, seed=seed)
    assert alone.records[-1]["global"]["accuracy"] < 0.75


def test_where_one_rule_does_nothing_changes():
    data = two_rules(rules=1)
    looked, never = (play(Concord(gate=gate), data)[1] for gate in (None, False))
    assert looked.server.gate == Gate()
    assert tree.equal(looked.server.params, never.server.params)


def test_a_network_with_an_encoder_tells_inputs_apart_itself():
    data = two_rules()
    for network, asked, expected in (("mlp", None, 0), ("mlp", True, 1), ("linear", None, 1)):
        method = Concord(gate=asked)
        stages = method.stages(5, toys.model_for(method, data, network))
        assert [stage.name for stage in stages].count("gate") == expected


def test_a_step_of_em_is_scikit_learns():
    """One client: at scikit-learn's maximum of the likelihood, with one covariance, EM stands."""
    rng = np.random.default_rng(0)
    cells = rng.choice(3, size=3000, p=[0.5, 0.3, 0.2])
    means, mixing = 4 * rng.normal(size=(3, 4)), np.eye(4) + 0.3
    x = means[cells] + rng.normal(size=(3000, 4)) @ mixing
    oracle = GaussianMixture(3, covariance_type="tied", tol=1e-9, max_iter=1000, random_state=0)
    oracle.fit(x)
    covariance = torch.from_numpy(oracle.covariances_).expand(3, 4, 4)
    before = Gaussians(torch.from_numpy(oracle.means_), covariance)
    settled = _settled(before, torch.from_numpy(x))
    after = _m_step(_held(torch.from_numpy(x), settled.gamma), Gate())
    assert np.allclose(settled.omega, oracle.weights_, atol=1e-4)
    assert np.allclose(after.means, before.means, atol=1e-3)
    assert np.allclose(after.covariances, before.covariances, atol=1e-3)


def test_a_gaussian_that_holds_nothing_stays():
    before = Gaussians(torch.tensor([[0.0], [1e3]]).double(), torch.ones(2, 1, 1).double())
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0)).double()
    total = _held(x, _settled(before, x).gamma)
    assert float(_m_step(total, Gate(gaussians=before)).means[1]) == 1e3


def test_nobodys_single_inputs_are_summed_alone(monkeypatch):
    """Where inputs lie is asked of points only that hold some of them."""
    found = []
    choose = GatesInputs._choose_centres

    def spy(method, gate, cohort):
        total = cohort.sum(method.locate, broadcast=gate.places)
        found.append((gate, total))
        return choose(method, gate, cohort)

    monkeypatch.setattr(GatesInputs, "_choose_centres", spy)
    data = two_rules()
    play(Concord(), data)
    gate, total = found[0]
    examples = sum(len(data.splits(id).train) for id in data.participants)
    assert 6 < len(gate.places) < len(gate.points)
    assert total.mass.min() >= FEWEST
    assert total.mass.sum() == examples


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("make", [two_rules, unequal_cells])
def test_heads_begin_as_linear_discriminants_of_their_inputs(monkeypatch, make, balanced):
    """As scikit-learn has them for the four cells of two clouds and two classes."""
    begun = []
    begin = Concord.begin_heads

    def spy(method, server, cohort):
        begun.append(begin(method, server, cohort))
        return begun[-1]

    monkeypatch.setattr(Concord, "begin_heads", spy)
    data = make(examples=400)
    made, _ = play(Concord(num_heads=3, balanced=balanced), data, rounds=1)
    server, published = begun[0], made.executor._node._published
    splits = [data.splits(id).train for id in data.participants]
    x, y = (torch.cat([getattr(split, part) for split in splits]) for part in ("x", "y"))
    cloud = (x[:, 0] > 0).long()
    oracle = LinearDiscriminantAnalysis().fit(x, 2 * cloud + y)
    cells = torch.from_numpy(oracle.predict_proba(x)).view(len(x), 2, 2)  # (N, cloud, class)
    expected = cells.sum(1).argmax(1)
    outputs = (x @ server.params["head.weight"].T + server.params["head.bias"]).view(len(x), 3, 2)
    if balanced:  # half of the shares stands beside the heads
        outputs = outputs + (y.bincount() / len(y)).log() / 2
    density, frame = published["gate"], published["frame"]
    logs = torch.distributions.MultivariateNormal(
        density.means[:, None], density.covariances[:, None]
    ).log_prob(frame.project(x.double()))
    found = (outputs.softmax(-1) * logs.T.softmax(-1)[..., None]).sum(1).argmax(1)
    assert float((found == expected).double().mean()) > 0.97


@pytest.mark.parametrize(("width", "examples"), [(150, 60), (201, 200)])
def test_heads_begin_alike_where_inputs_are_few_or_wide(monkeypatch, width, examples):
    """Discriminants of 720 inputs in 150 dimensions would be sure of chance."""
    begun = []
    begin = Concord.begin_heads

    def spy(method, server, cohort):
        begun.append((server, begin(method, server, cohort)))
        return begun[-1][1]

    monkeypatch.setattr(Concord, "begin_heads", spy)
    _, progress = play(Concord(), wider(two_rules(examples=examples), width), rounds=1)
    assert progress.server.gate.is_used
    before, after = begun[0]
    assert tree.equal(before.params, after.params)


def test_the_module_of_a_client_predicts_the_same():
    data = two_rules()
    made, progress = play(Concord(), data)
    method, client, message = first_client(made, progress)
    own = method.adapt(client, toys.state(made, client.id), message, new=False)
    test = data.splits(client.id).test
    predicted = method.predict(client, own, message, test)
    module = method.module(client, own, message)
    assert torch.allclose(module(test.inputs()), predicted, atol=1e-6)
    flat = predicted.mean(0, keepdim=True)
    assert (predicted - flat).abs().max() > 0.4, "not the same for all inputs"


def test_only_sums_are_asked_for(monkeypatch):
    orders = []
    perform = Serial.perform

    def spy(executor, order):
        orders.append(order)
        return perform(executor, order)

    monkeypatch.setattr(Serial, "perform", spy)
    play(Concord(), two_rules(), rounds=2)
    asked = [order for order in orders if order.step not in EVALUATION_STEPS]
    assert {order.wanted for order in asked} == {"total"}
    assert "judge_gate" in {order.step for order in asked}
    gates = [order.broadcast.gate for order in asked if order.step == "train"]
    assert gates == [Gate(is_used=True)] * 2, "no Gaussian goes along with the model"


@pytest.mark.parametrize("seed", range(3))
def test_clients_may_drop_out_meanwhile(seed):
    made, progress = play(Concord(), two_rules(), rounds=4, seed=seed, dropout=0.3)
    assert progress.server.gate == Gate(is_used=True)
    assert set(made.records[-1]["missing"]) <= {"dropped out"}, "no reply was refused"


@pytest.mark.parametrize("seed", range(3))
def test_rounds_in_which_too_few_answer_end_nothing(seed):
    plan = {"dropout": 0.5, "min_replies": 6, "seed": seed}
    _, progress = play(Concord(), two_rules(), **plan)
    assert progress.void_rounds > 0


def test_fewer_places_than_gaussians():
    """Forty inputs, at three places: three Gaussians hold nothing."""
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0]]
    part = Arrays(x, [0, 1, 0, 0, 1, 0, 0, 1, 0, 0])
    data = Federation.build({f"client-{i}": (part, part, part) for i in range(4)}, {}, 2)
    made, progress = play(Concord(gate=True), data)
    assert progress.round > 0
    assert set(made.records[-1].get("missing", ())) == set(), "no reply was refused"


def test_places_of_few_inputs_are_left_out_where_others_have_dropped_out(monkeypatch):
    """Ten inputs were next to a point; without the client that has nine it is one client's."""
    held = (torch.tensor([9.0, 1, 12]), torch.ones(3, 2), torch.eye(2))
    near = Held(*(part.double() for part in held))
    cohort = SimpleNamespace(sum=lambda *_, **__: near, random=Key(0).child)
    seen = []

    def kmeans(means, *_):
        seen.append(len(means))
        return np.zeros(len(means), dtype=np.int64)

    monkeypatch.setattr(clustering, "kmeans", kmeans)
    Concord()._choose_centres(Gate(places=torch.zeros(3, 2), variance=1.0), cohort)
    assert seen == [1]


def test_fewer_inputs_than_gaussians():
    """Four clients with one input each."""
    part = Arrays(np.eye(4, dtype=np.float32)[:1], [0])
    data = Federation.build({f"client-{i}": (part, part, part) for i in range(4)}, {}, 2)
    _, progress = play(Concord(gate=True), data)
    assert progress.round > 0


def test_likelihoods_with_a_gate():
    """Inputs that no cloud has are unlikely."""
    data = two_rules()
    made, progress = play(Concord(density=True), data)
    method, client, message = first_client(made, progress)
    test = data.splits(client.id).test
    far = Examples(test.x + 20, test.y)
    for own in (None, method.adapt(client, toys.state(made, client.id), message, new=False)):
        known, strange = (
            method.likelihood(client, own, message, part).log_x for part in (test, far)
        )
        assert known.min() > strange.max()


def test_a_gate_that_was_asked_for_and_is_not_there_is_said():
    without, asked = (play(Concord(gate=gate), two_rules(rules=1)) for gate in (None, True))
    for (made, progress), expected in ((without, ""), (asked, "none was found")):
        reason = made.setup.algorithm.left_out(made.task, progress.server)
        assert expected in reason
        assert bool(reason) == bool(expected)
    found = play(Concord(gate=True), two_rules())
    assert not found[0].setup.algorithm.left_out(found[0].task, found[1].server)


def test_clients_with_a_gate_are_in_no_groups():
    made, _ = play(Concord(), two_rules())
    assert not any("group" in row for row in made.last_rows().values())
    assert all("weights" in row for row in made.last_rows().values())


def test_a_gate_that_could_not_be_looked_for_is_refused():
    with pytest.raises(SettingError, match=r"gate must be false where no groups are looked for"):
        Concord(num_heads=2, gate=True)
