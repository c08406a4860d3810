"""IFCA, CFL, FeSEM and FedSoft: one cluster is FedAvg, planted concepts are found."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import toys
from concordfl import Key, Training
from concordfl.algorithms import CFL, IFCA, FedAvg, FedSoft, FeSEM
from concordfl.core import tree
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan

CLASSES = 4


def concepts(clients=12, examples=80, count=3, seed=0):
    """The same inputs at all clients, labelled by one of `count` maps: label + concept, mod the
    classes.
    """
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(CLASSES, 6))

    def draw(concept, size):
        y = rng.integers(CLASSES, size=size)
        return Arrays(
            (centres[y] + rng.normal(size=(size, 6))).astype(np.float32), (y + concept) % CLASSES
        )

    parts = {
        f"c{i:02d}": (draw(i % count, examples), draw(0, 0), draw(i % count, 40))
        for i in range(clients)
    }
    new = {f"new-{k}": (draw(k, examples), draw(0, 0), draw(k, 40)) for k in range(count)}
    groups = {id: {"concept": str(place % count)} for place, id in enumerate(parts)}
    return Federation.build(parts, new, CLASSES, groups)


TRAINING = Training(lr=0.1, batch_size=16, momentum=0.0, epochs=1)


def finished(method, data, rounds, training=TRAINING, seed=0, network="linear"):
    plan = Plan(rounds=rounds, evaluate_every=rounds, seed=seed)
    made = toys.experiment(method, data, plan=plan, training=training, network=network)
    return made, made.run(made.start())


def agreement(made):
    found = toys.rows(made)
    ids = made.federation.participants
    return adjusted_rand_score(
        [made.federation.groups[id]["concept"] for id in ids],
        [str(found[id]["group"]) for id in ids],
    )


@pytest.mark.parametrize(
    "method",
    [
        IFCA(num_models=1, average="size"),
        CFL(max_clusters=1, warm_up=0),
        FeSEM(num_models=1, mu=0.0, average="size"),
    ],
)
def test_one_cluster_is_fedavg_to_the_bit(method):
    """FeSEM's first round, which asks everyone, comes before the run's."""
    data = toys.federation()
    _, ours = finished(method, data, 3 if isinstance(method, FeSEM) else 4, network="mlp")
    _, theirs = finished(FedAvg(), data, 4, network="mlp")
    model = {
        "ifca": lambda s: s[0],
        "cfl": lambda s: s.models[0],
        "fesem": lambda s: s.centres[0],
    }
    assert tree.equal(model[type(method).__name__.lower()](ours.server), theirs.server)


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        (IFCA(num_models=3), 20),
        (CFL(warm_up=5, stopped=0.5, pulling=0.3, max_clusters=3), 40),
        (FeSEM(num_models=3), 20),
    ],
)
def test_planted_concepts_are_found(method, rounds):
    """IFCA by the best of three starts: it depends on its seeds, as its paper says."""
    starts = range(3 if isinstance(method, IFCA) else 1)
    best = max(
        (finished(method, concepts(seed=seed), rounds, seed=seed)[0] for seed in starts),
        key=agreement,
    )
    assert agreement(best) == 1
    assert best.records[-1]["local"]["accuracy"] > 0.95
    assert (
        best.records[-1]["global"]["accuracy"] > 0.95
    )  # a new client takes the cluster with the least loss


def test_cfl_splits_twice_with_the_right_clients_in_each():
    data = concepts(clients=12, examples=100)
    made, progress = finished(CFL(warm_up=5, stopped=0.5, pulling=0.3), data, 60)
    server = progress.server
    assert len(server.splits) >= 2
    assert agreement(made) == 1
    (parent, child, first), (again, _, second) = server.splits[:2]
    assert (parent, child) == (0, 1)
    assert second > first
    assert again in (0, 1)
    assert made.records[-1]["server"]["clusters"] == len(server.models)


def test_cfl_waits_for_the_warm_up_and_stops_at_the_most():
    data = concepts()
    _, early = finished(CFL(warm_up=30, stopped=5, pulling=0.001), data, 10)
    assert early.server.splits == []
    _, late = finished(CFL(warm_up=0, stopped=100, pulling=0.001, max_clusters=2), data, 10)
    assert len(late.server.models) == 2


def test_cfl_leaves_pairs_alone():
    _, progress = finished(CFL(warm_up=0, stopped=100, pulling=0.001), concepts(clients=2), 5)
    assert progress.server.splits == []


def test_an_empty_ifca_cluster_keeps_its_model():
    made, progress = finished(IFCA(num_models=4), concepts(clients=3, count=1), 3)
    taken = {toys.rows(made)[id]["group"] for id in made.federation.participants}
    start = {k: made.setup.model.init(0, index=k) for k in range(4)}
    kept = [k for k in range(4) if tree.equal(progress.server[k], start[k])]
    assert kept
    assert not taken & set(kept)


def test_fesem_assigns_to_the_nearest_centre():
    made, progress = finished(FeSEM(num_models=3, mu=0.0), concepts(), 6)
    before = progress.server
    turn = made.turns[-1]
    cohort = made._assemble(turn, progress)
    messages = {id: {before.members[id]: before.centres[before.members[id]]} for id in cohort.ids}
    trained = {
        id: reply.mean() for id, reply in cohort.run(made.algorithm.train, each=messages).items()
    }
    after = made.algorithm.round(before, made._assemble(turn, progress))
    for id, params in trained.items():
        flat = torch.cat([value.flatten() for value in params.values()])
        distances = [
            float((flat - torch.cat([value.flatten() for value in centre.values()])).norm())
            for centre in before.centres.values()
        ]
        assert after.members[id] == int(np.argmin(distances))
    # One whose trained weights are another cluster's centre moves there, and takes its weights
    # along.
    mover = cohort.ids[0]
    other = next(k for k in before.centres if k != before.members[mover])
    planted = before._replace(centres={**before.centres, other: trained[mover]})
    moved = made.algorithm.round(planted, made._assemble(turn, progress))
    assert moved.members[mover] == other != before.members[mover]


def test_fedsoft_importance_is_the_share_of_examples_that_a_cluster_fits_best():
    data = concepts()
    made, progress = finished(FedSoft(num_models=3), data, 6)
    id = data.participants[0]
    client = toys.client(data.splits(id).train, made.setup.model, classes=CLASSES)
    found = made.algorithm._importance(client, progress.server)
    losses = torch.stack([client.losses(params) for params in progress.server.values()])
    share = np.bincount(losses.argmin(0).numpy(), minlength=3) / client.size
    assert np.allclose(found.numpy(), np.maximum(share, 1e-4))
    state = toys.state(made, id)
    assert state.estimated == 4  # of rounds 0 to 5: 0, 2 and 4
    assert made.records[-1]["local"]["accuracy"] > 0.9


def test_fedsoft_pulls_to_the_centres():
    """With a large λ and small enough steps, a client's model lies near the importance-weighted
    mean of the centres.
    """
    data = concepts(clients=3)
    near, far = (
        finished(
            FedSoft(num_models=2, penalty=penalty),
            data,
            1,
            Training(lr=0.01, batch_size=16, momentum=0.0, epochs=1),
        )[0]
        for penalty in (50.0, 0.0)
    )

    def distance(made):
        state = toys.state(made, "c00")
        start = {k: toys.model_for(FedSoft(), data, "linear").init(0, index=k) for k in range(2)}
        shares = state.importance / state.importance.sum()
        middle = {
            name: sum(float(u) * start[k][name] for k, u in enumerate(shares))
            for name in state.model
        }
        return float(tree.sq_dist(state.model, middle))

    assert distance(near) < distance(far) / 4


@pytest.mark.parametrize(
    "method",
    [CFL(warm_up=5, stopped=0.5, pulling=0.3, max_clusters=3), FeSEM(num_models=3)],
    ids=["cfl", "fesem"],
)
def test_planted_concepts_are_found_by_a_part_of_the_clients_at_a_time(method):
    """Those that were away when clusters were made take the one that fits them best."""
    data = concepts(clients=24)
    plan = Plan(rounds=60, evaluate_every=60, cohort=0.5)
    made = toys.experiment(method, data, plan=plan, training=TRAINING, network="linear")
    made.run(made.start())
    assert agreement(made) > 0.8
    assert made.records[-1]["local"]["accuracy"] > 0.9


def test_fedsoft_draws_clients_by_their_importance():
    """Whoever a cluster draws finds it important; if all are drawn the centre is the plain mean of
    their models.
    """
    data = concepts(clients=12)
    made, _ = finished(FedSoft(num_models=3, drawn=3), data, 12)
    told = {id: toys.state(made, id).importance for id in data.participants}
    drawn_by = made.algorithm._draw(told, Key(0))
    assert sorted(k for names in drawn_by.values() for k in names) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert all(told[id][k] > 0.1 for id, names in drawn_by.items() for k in names)
    assert made.records[-1]["local"]["accuracy"] > 0.9

    made, everyone = finished(FedSoft(num_models=2, drawn=12), data, 1)
    models = [toys.state(made, id).model for id in data.participants]
    for centre in everyone.server.values():
        assert all(
            torch.allclose(centre[name], torch.stack([m[name] for m in models]).mean(0), atol=1e-6)
            for name in centre
        )


def test_cfl_does_not_depend_on_the_number_of_threads(tmp_path):
    """Lengths of updates are part of the server's state: they may not depend on BLAS."""
    script = tmp_path / "script.py"
    script.write_text(
        "import toys\n"
        "from concordfl.algorithms import CFL\n"
        "from concordfl.engine.plan import Plan\n"
        "data = toys.federation(clients=4, features=20000)\n"
        "made = toys.experiment(CFL(), data, plan=Plan(rounds=2), network='linear')\n"
        "print(*toys.digests(made))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            check=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                **dict.fromkeys(
                    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads
                ),
            },
        ).stdout
        for threads in ("1", "2")
    }
    assert len(found) == 1
