"""FedConcat: its limits, its groups, its bytes, and the model it leaves behind."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import adjusted_rand_score

import toys
from concordfl import Client, ClientStepError, DataError, Key, Model, SettingError, Training, run
from concordfl.algorithms import FedAvg, FedConcat, FedConcatID, Local
from concordfl.core import Classification, tree
from concordfl.data import Arrays, Federation
from concordfl.data.datasets import DATASETS
from concordfl.engine.evaluate import EVALUATION_STEPS
from concordfl.engine.plan import Plan
from concordfl.models import make_builder
from concordfl.scenarios import PARTITIONS, Scenario, build_federation

CLASSES = 6
LENET = Model(make_builder("lenet", (1, 28, 28), 10, {}))


def skewed(clients=12, per_client=40, seed=0):
    """Clients in three groups with two of six classes each."""
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(CLASSES, 8))

    def draw(group, count):
        y = rng.integers(2, size=count) + 2 * group
        return Arrays((centres[y] + rng.normal(size=(count, 8))).astype(np.float32), y)

    parts = {
        f"c{i:02d}": (draw(i % 3, per_client), draw(i % 3, 0), draw(i % 3, 20))
        for i in range(clients)
    }
    everything = Arrays(
        *(
            np.concatenate(part)
            for part in zip(*(draw(group, 60) for group in range(3)), strict=True)
        )
    )
    groups = {id: {"concept": str(place % 3)} for place, id in enumerate(parts)}
    return Federation.build(
        parts, {"all": (everything, everything.take(np.arange(0)), everything)}, CLASSES, groups
    )


def play(method, data, training=toys.TRAINING, **options):
    made = toys.experiment(
        method, data, plan=Plan(rounds=1, evaluate_every=1000), training=training, **options
    )
    return made, made.run(made.start())


def test_one_cluster_is_fedavg_to_the_bit():
    """The encoder stage of one group, although a stage came before it."""
    data = skewed()
    plain = toys.experiment(FedAvg(), data, plan=Plan(rounds=5, evaluate_every=5))
    server = plain.run(plain.start()).server
    for method in (FedConcat, FedConcatID):
        _, progress = play(method(clusters=1, encoder_rounds=5, head_rounds=1), data)
        assert tree.equal(progress.server.models[0], server)


@pytest.mark.parametrize("infer", ["labels", "model", "bias"])
def test_planted_groups_are_found(infer):
    data = skewed()
    training = Training(lr=0.05, batch_size=8, epochs=4, momentum=0.0)
    made, progress = play(
        FedConcat(clusters=3, infer=infer, encoder_rounds=2, head_rounds=1), data, training
    )
    truth = [data.groups[id]["concept"] for id in data.participants]
    assert (
        adjusted_rand_score(truth, [progress.server.members[id] for id in data.participants]) == 1
    )
    assert made.records[-1]["clusters"]["ari"] == 1
    assert made.records[-1]["server"]["cluster_sizes"] == [4, 4, 4]


def test_the_elbow_finds_the_planted_number():
    _, progress = play(FedConcat(clusters="elbow", encoder_rounds=1, head_rounds=1), skewed())
    assert len(progress.server.models) == 3


def test_balanced_groups():
    data = skewed(clients=11)
    _, progress = play(FedConcat(clusters=2, balanced=True, encoder_rounds=1, head_rounds=1), data)
    members = list(progress.server.members.values())
    assert max(members.count(0), members.count(1)) <= 6


def spy(made):
    """Keeps all replies of steps, by step."""
    kept = {}
    perform = made.executor.perform

    def watched(order):
        if order.step not in EVALUATION_STEPS:
            replies = perform(order._replace(wanted="replies")).value
            kept.setdefault(order.step, []).append(replies)
        return perform(order)

    made.executor.perform = watched
    return kept


def test_inferred_labels_are_close_to_the_true_ones_and_none_leave_the_client():
    """#C = 2 on real images with the simple CNN: five epochs at the paper's rate."""
    key = Key(0)
    try:
        images = DATASETS["fashion-mnist"](limit=6000).load(key)
    except DataError as error:
        pytest.skip(f"the data are not here: {error}")
    partition = PARTITIONS["labels-per-client"](labels=2)
    data = build_federation(images, Scenario(clients=20, partition=partition), key)
    method = FedConcatID(clusters=5, encoder_rounds=1, head_rounds=1, random_inputs=2000)
    training = Training(lr=0.01, momentum=0.9, weight_decay=1e-5, batch_size=64, epochs=5)
    made = toys.experiment(method, data, plan=Plan(rounds=1), training=training, network="lenet")
    replies = spy(made)
    progress = made.start()
    made.play(made.turns[0], progress)
    assert set(replies) == {"train"}  # no step tells labels
    trained = {id: reply[0] for id, reply in replies["train"][0].items()}
    assert all(set(reply.total) == set(made.setup.model.names) for reply in trained.values())
    inferred = method._inferred(
        trained, made.setup.model.init(0), made._assemble(made.turns[0], progress)
    )
    truth = {
        id: np.bincount(data.splits(id).train.y, minlength=10) / data.size(id)
        for id in data.participants
    }
    assert np.mean([np.corrcoef(truth[id], inferred[id])[0, 1] for id in inferred]) > 0.9


def test_inference_against_the_formulas():
    data = skewed(clients=3)
    made = toys.experiment(
        FedConcat(),
        data,
        plan=Plan(rounds=1),
        training=Training(lr=0.1, batch_size=8, epochs=2, momentum=0.0),
    )
    cohort = made._assemble(made.turns[0], made.start())
    start, after = made.setup.model.init(0), made.setup.model.init(1)
    found = FedConcat(infer="bias")._inferred({"a": tree.weighted(after, 40)}, start, cohort)["a"]
    b0, b1 = start["head.bias"].double().numpy(), after["head.bias"].double().numpy()
    shares = np.maximum(np.exp(b0) / np.exp(b0).sum() + (b1 - b0) / (2 * 5 * 0.1), 0)
    assert np.allclose(found, shares / shares.sum(), atol=1e-6)
    found = FedConcat(infer="model", random_inputs=70)._inferred(
        {"a": tree.weighted(after, 40)}, start, cohort
    )["a"]
    inputs = cohort.random("inputs").normal((70, 8)).float()
    assert np.allclose(
        found, made.setup.model.logits(after, inputs).softmax(1).mean(0).numpy(), atol=1e-6
    )


@pytest.mark.parametrize("infer", ["labels", "model", "bias"])
def test_label_shares_are_recorded_as_the_server_knows_them(infer):
    """Told ones are the true ones; inferred ones are not, and the file of the federation has the
    true ones beside them.
    """
    data = skewed()
    method = FedConcat(clusters=3, infer=infer, encoder_rounds=1, head_rounds=1, random_inputs=50)
    made, _ = play(method, data)
    rows = made.last_rows()
    assert set(rows) == set(data.participants)
    for client in data.describe()["clients"]:
        if client["held_out"]:
            continue
        truth = np.array(client["labels"]) / client["train"]
        found = np.array(rows[client["id"]]["label_shares"])
        assert found.shape == (CLASSES,)
        assert found.sum() == pytest.approx(1)
        assert np.allclose(found, truth) == (infer == "labels")


def test_as_many_clusters_as_clients_are_local_training_side_by_side():
    """No clustering (figures 3 and 15): every encoder is that of a client that trains alone."""
    data = skewed(clients=4)
    method = FedConcat(clusters=4, encoder_rounds=3, head_rounds=2)
    made, progress = play(method, data)
    plain = toys.experiment(Local(), data, plan=Plan(rounds=3, evaluate_every=3))
    plain.run(plain.start())
    members = progress.server.members
    assert sorted(members.values()) == [0, 1, 2, 3]
    for id, k in members.items():
        for name, value in toys.state(plain, id).items():
            assert torch.allclose(progress.server.models[k][name], value, atol=1e-6)
    assert progress.server.head["weight"].shape == (CLASSES, 4 * 8)
    assert made.records[-1]["server"]["cluster_sizes"] == [1, 1, 1, 1]


def test_noise_on_the_label_shares():
    data = skewed(clients=30)
    method = FedConcat(epsilon=2.5, encoder_rounds=1, head_rounds=1)
    made = toys.experiment(method, data, plan=Plan(rounds=1, noise_seed=0))
    replies = spy(made)
    made.play(made.turns[0], made.start())
    (told,) = replies["tell_labels"]
    truth = {
        id: np.bincount(data.splits(id).train.y, minlength=CLASSES) / data.size(id) for id in told
    }
    noise = np.stack([told[id].numpy() - truth[id] for id in told])
    assert np.abs(noise).mean() == pytest.approx(1 / 2.5, rel=0.2)  # the mean of |Laplace(b)| is b


@pytest.mark.parametrize("method", [FedConcat, FedConcatID])
def test_counted_bytes_are_the_formula(method):
    """N[2w·T_e + K(w−h) + 2(K·h_weight + h_bias)·T_c] numbers, and a weight per reply."""
    data, k, encoder_rounds, head_rounds = skewed(), 3, 4, 7
    made, progress = play(
        method(
            clusters=k, encoder_rounds=encoder_rounds, head_rounds=head_rounds, random_inputs=10
        ),
        data,
    )
    n, w = 12, made.setup.model.num_parameters
    bias, weight = CLASSES, CLASSES * 8  # the mlp of the toys has a width of 8
    h = bias + weight
    numbers = n * (2 * w * encoder_rounds + k * (w - h) + 2 * (k * weight + bias) * head_rounds)
    told = 0 if method is FedConcatID else 8 * CLASSES * n  # label shares, in doubles
    weights = 8 * n * (encoder_rounds + head_rounds)
    assert progress.traffic.down + progress.traffic.up == 4 * numbers + told + weights


def test_the_papers_schedule_costs_what_50_rounds_of_fedavg_cost():
    """By the formula that the counted bytes equal: the paper's 31 and 173 rounds on its network,
    and ours.
    """
    w, h = (
        LENET.num_parameters,
        sum(value.numel() for value in tree.subset(LENET.init(0), LENET.head_names).values()),
    )
    assert (w, h) == (44_426, 850)
    encoder_rounds, head_rounds = FedConcat().rounds_of_stages(50, LENET)
    assert (encoder_rounds, head_rounds) == (31, pytest.approx(173, abs=2))
    wide = 5 * (h - 10) + 10
    for rounds in (head_rounds, 173):
        ours = 2 * w * encoder_rounds + 5 * (w - h) + 2 * wide * rounds
        assert ours == pytest.approx(2 * w * 50, rel=0.01)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"encoder_rounds": 3},
        {"head_rounds": 8},
        {"infer": "model", "restart": True, "random_inputs": 10},
        {"strategy": "fesem"},
        {"strategy": "ifca"},
        {"strategy": "fedsoft"},
    ],
    ids=lambda given: "-".join(given) or "none",
)
def test_stages_that_are_left_out_send_what_the_rounds_of_fedavg_send(given):
    """Counted by the engine, on a network that is mostly head."""
    sent = []
    for method in (FedConcat(clusters=3, **given), FedAvg()):
        made = toys.experiment(method, skewed(), plan=Plan(rounds=16, evaluate_every=1000))
        traffic = made.run(made.start()).traffic
        sent.append(traffic.down + traffic.up)
    assert sent[0] == pytest.approx(sent[1], rel=0.1)


def test_given_stages_are_played_as_given():
    method = FedConcat(encoder_rounds=31, head_rounds=173)
    assert method.rounds_of_stages(2, LENET) == method.rounds_of_stages(500, LENET) == (31, 173)


def test_a_run_too_short_for_its_encoders_still_trains_a_head():
    """The encoders' way to the clients alone costs two and a half rounds."""
    assert FedConcat().rounds_of_stages(1, LENET) == (1, 2)


def test_no_encoder_is_run_in_the_head_stage(monkeypatch):
    made = toys.experiment(
        FedConcat(clusters=3, encoder_rounds=2, head_rounds=6),
        skewed(),
        plan=Plan(rounds=1, evaluate_every=1),
    )
    calls = []
    features = made.setup.model.features
    monkeypatch.setattr(
        made.setup.model,
        "features",
        lambda params, inputs: calls.append(len(inputs)) or features(params, inputs),
    )
    progress = made.start()
    seen = {}
    for turn in made.turns:
        before = sum(calls)
        made.play(turn, progress)
        seen[turn.stage.name] = seen.get(turn.stage.name, 0) + sum(calls) - before
    assert seen == {"cluster": 0, "encoders": 0, "concatenate": 3 * 12 * 40, "head": 0}
    # Evaluation looks at every other example once, whatever the number of rounds that are
    # evaluated.
    for _ in range(3):
        made._evaluate(made.turns[-1], progress)
    assert sum(calls) == 3 * (12 * 40 + 12 * 20 + 180)


def test_the_head_is_softmax_regression_on_the_features():
    """Full batches of one client: plain gradient descent, by hand."""
    data = skewed(clients=1)
    method = FedConcat(clusters=1, encoder_rounds=1, head_rounds=2, head_steps=1)
    made, progress = play(method, data, Training(lr=0.1, batch_size=1000, momentum=0.0, epochs=1))
    client = toys.client(
        data.splits("c00").train,
        made.setup.model,
        classes=CLASSES,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    x = method.features(client, client.examples)
    head = method._first_head(progress.server.models, made._assemble(made.turns[2], progress))
    weight, bias = head["weight"], head["bias"]
    for _ in range(2):
        error = F.linear(x, weight, bias).softmax(1) - F.one_hot(client.examples.y, CLASSES)
        weight, bias = weight - 0.1 * error.T @ x / len(x), bias - 0.1 * error.mean(0)
    assert torch.allclose(progress.server.head["weight"], weight, atol=1e-5)
    assert torch.allclose(progress.server.head["bias"], bias, atol=1e-5)


def test_a_head_from_the_clusters_sums_their_logits():
    data = skewed()
    method = FedConcat(clusters=3, encoder_rounds=3, head_rounds=1, head_init="clusters")
    made, progress = play(method, data)
    head = method._first_head(progress.server.models, made._assemble(made.turns[-2], progress))
    examples = data.splits("all").test
    client = toys.client(
        examples,
        made.setup.model,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    ours = F.linear(method.features(client, examples), **head)
    each = [
        made.setup.model.logits(params, examples.inputs())
        for params in progress.server.models.values()
    ]
    assert torch.allclose(ours, torch.stack(each).sum(0), atol=1e-4)


def test_an_equal_average_of_heads():
    """By hand: the heads of three clients of unequal size, averaged by size and equally."""
    rng = np.random.default_rng(0)
    sizes = {"a": 10, "b": 20, "c": 70}

    def draw(count):
        return Arrays(
            rng.normal(size=(count, 5)).astype(np.float32), rng.integers(CLASSES, size=count)
        )

    data = Federation.build(
        {id: (draw(size), draw(0), draw(4)) for id, size in sizes.items()}, {}, CLASSES
    )
    for how, weights in (("size", sizes), ("equal", dict.fromkeys(sizes, 1))):
        method = FedConcat(clusters=1, encoder_rounds=1, head_rounds=1, head_average=how)
        made, progress = play(method, data)
        start = method._first_head(progress.server.models, made._assemble(made.turns[2], progress))
        expected = {name: torch.zeros_like(value) for name, value in start.items()}
        for id, weight in weights.items():
            published = {
                "published": lambda name, p=progress: tree.unpack(p.publications.data[name])
            }
            client = Client(
                id,
                data.splits(id).train,
                objective=Classification(CLASSES),
                model=made.setup.model,
                training=made.setup.training,
                seed=0,
                round=0,
                **published,
            )
            _, reply = method.train_on_features(client, {}, start)
            for name, value in toys.sent(reply).mean().items():
                expected[name] += value * weight / sum(weights.values())
        for name, value in expected.items():
            assert torch.allclose(progress.server.head[name], value, atol=1e-6)


def test_it_beats_fedavg_where_labels_are_skewed():
    data = skewed()
    training = Training(lr=0.05, momentum=0.9, batch_size=8, epochs=2)
    method = FedConcat(clusters=3, encoder_rounds=3, head_rounds=30)
    ours = toys.result(
        toys.experiment(method, data, plan=Plan(rounds=1, evaluate_every=1000), training=training)
    )
    theirs = toys.result(
        toys.experiment(FedAvg(), data, plan=Plan(rounds=4, evaluate_every=1000), training=training)
    )
    assert ours["final"]["global_accuracy"] > theirs["final"]["global_accuracy"]


PLAIN_SESSION = """
import json, sys, torch
from safetensors.torch import load_file
from torch import nn

class SideBySide(nn.Module):
    def __init__(self, encoders):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
    def forward(self, x):
        return torch.cat([encoder(x) for encoder in self.encoders], dim=1)

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()) for _ in range(3))
        self.encoder = SideBySide(layers)
        self.head = nn.Linear(48, 10)
    def forward(self, x):
        return self.head(self.encoder(x))

model = Wide()
model.load_state_dict(load_file(sys.argv[1]))
data = load_file(sys.argv[2])
predicted = model(data["x"].float().permute(0, 3, 1, 2) / 255).argmax(1)
accuracy = float((predicted == data["y"]).double().mean())
print(json.dumps({"accuracy": accuracy, "ours": "concordfl" in sys.modules}))
"""


def test_the_saved_wide_model_predicts_what_the_run_reported(tmp_path):
    from safetensors.torch import save_file

    from concordfl.runner import load_config, make_federation

    sections = {
        "data": {"name": "digits", "standardise": False},
        "scenario": {"clients": 6, "partition": {"kind": "labels-per-client", "labels": 3}},
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"lr": 0.05, "momentum": 0.9},
        "algorithm": {"name": "fedconcat", "clusters": 3, "encoder_rounds": 4, "head_rounds": 10},
    }
    result = run(**sections, out=tmp_path / "run")
    federation = make_federation(load_config(sections))
    (held_out,) = federation.held_out
    test = federation.splits(held_out).test
    save_file({"x": test.x.contiguous(), "y": test.y.contiguous()}, tmp_path / "test.safetensors")
    model = tmp_path / "run/models/final.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, str(model), str(tmp_path / "test.safetensors")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer == {"accuracy": result.summary["final"]["global_accuracy"], "ours": False}


def test_models_that_cannot_be_concatenated():
    with pytest.raises(
        SettingError,
        match="fedconcat needs a model with an encoder and a linear head, got Sequential",
    ):
        FedConcat().network(torch.nn.Sequential(), 2)


@pytest.mark.parametrize("cohort", [1.0, 4])
@pytest.mark.parametrize("strategy", ["ifca", "fesem", "fedsoft"])
def test_encoders_of_other_clusterings(strategy, cohort):
    """The K models are those of the method itself, after as many rounds; then a head for all of
    them.
    """
    data = skewed()
    method = FedConcat(clusters=3, strategy=strategy, encoder_rounds=4, head_rounds=12)
    made = toys.experiment(method, data, plan=Plan(rounds=1, evaluate_every=1000, cohort=cohort))
    progress = made.run(made.start())
    rounds = 3 if strategy == "fesem" else 4  # FeSEM has a first round beside the run's
    plain = toys.experiment(
        method._inner(), data, plan=Plan(rounds=rounds, evaluate_every=1000, cohort=cohort)
    )
    alone = plain.run(plain.start())
    assert tree.equal(progress.server.models, method._inner().shared_models(alone.server))
    assert progress.server.head["weight"].shape == (CLASSES, 8 * len(progress.server.models))
    assert made.records[-1]["global"]["accuracy"] > 1.5 / CLASSES
    with pytest.raises(
        SettingError, match=f"clusters must be a number where strategy is '{strategy}', got 'elbow'"
    ):
        FedConcat(clusters="elbow", strategy=strategy)


@pytest.mark.parametrize("head_init", ["random", "clusters"])
def test_a_head_without_bias(head_init):
    method = FedConcatID(
        clusters=2, encoder_rounds=2, head_rounds=2, head_init=head_init, random_inputs=50
    )
    made = toys.experiment(method, skewed(), plan=Plan(rounds=1), network="toys:unbiased_net")
    progress = made.run(made.start())
    assert set(progress.server.head) == {"weight"}
    assert {name.split(".")[0] for name in method.deployed(progress.server)} == {"encoder", "head"}
    with pytest.raises(SettingError, match="infer = 'bias' needs a head with a bias"):
        FedConcat(infer="bias").network(toys.unbiased_net((8,), CLASSES), CLASSES)


def test_nobody_answers_at_first():
    """What was missed is made up for; if nobody ever answers, the run says so."""
    method = FedConcat(clusters=2, encoder_rounds=3, head_rounds=6)
    made = toys.experiment(
        method, skewed(clients=1), plan=Plan(rounds=1, dropout=0.5, evaluate_every=1, seed=1)
    )
    assert method.ready(made.run(made.start()).server)
    lost = toys.experiment(
        method, skewed(clients=1), plan=Plan(rounds=1, dropout=0.99, evaluate_every=1)
    )
    with pytest.raises(
        ClientStepError, match="at least 1 client must answer once before training, got fewer"
    ):
        lost.run(lost.start())


def test_settings_that_would_be_ignored():
    with pytest.raises(SettingError, match="epsilon is for label shares that clients tell"):
        FedConcat(infer="model", epsilon=1.0)
    with pytest.raises(SettingError, match="infer must be"):
        FedConcatID(infer="labels")
    with pytest.raises(SettingError, match="restart is for labels that are inferred"):
        FedConcat(restart=True)
    with pytest.raises(
        SettingError, match="infer is for strategy = 'kmeans', got 'model' with 'ifca'"
    ):
        FedConcat(strategy="ifca", infer="model")
    with pytest.raises(
        SettingError, match="balanced is for strategy = 'kmeans', got True with 'fesem'"
    ):
        FedConcat(strategy="fesem", balanced=True)


def test_a_restart_throws_the_round_that_infers_labels_away():
    """Then one cluster is FedAvg of as many rounds as the encoders have; else that round is the
    first of them.
    """
    data = skewed()
    for restart in (True, False):
        method = FedConcatID(
            clusters=1, encoder_rounds=3, head_rounds=1, random_inputs=20, restart=restart
        )
        stages = {stage.name: stage.rounds for stage in method.stages(20, LENET)}
        assert stages["encoders"] == (3 if restart else 2)
        plain = toys.experiment(FedAvg(), data, plan=Plan(rounds=3, evaluate_every=1000))
        assert tree.equal(play(method, data)[1].server.models[0], plain.run(plain.start()).server)


def test_a_stage_that_training_builds_on_is_asked_again():
    """Nobody is left out for good because all were lost at once."""
    method = FedConcat(clusters=2, encoder_rounds=3, head_rounds=2)
    found = []
    for seed in range(12):
        plan = Plan(rounds=1, dropout=0.7, evaluate_every=1, seed=seed)
        made = toys.experiment(method, skewed(clients=2), plan=plan)
        progress = made.start()
        made.play(made.turns[0], progress)
        found.append(len(progress.server.members))
    assert min(found) >= 1
    assert len(set(found)) == 2  # some lose one of the two


def test_one_cluster_is_saved_as_the_plain_network():
    made, progress = play(FedConcat(clusters=1, encoder_rounds=1, head_rounds=1), skewed())
    assert set(made.algorithm.deployed(progress.server)) == set(made.setup.model.names)
