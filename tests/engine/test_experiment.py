from dataclasses import dataclass

import pytest
import torch

import toys
from concordfl import CheckpointError, ClientStepError, SettingError, Stage, Training, client_step
from concordfl.algorithms import FedAvg, FedAvgFineTuned, FedBN, Local
from concordfl.core import Classification, tree
from concordfl.core.random import Key
from concordfl.engine import sampling
from concordfl.engine.experiment import schedule
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder


def test_fedavg_is_the_weighted_mean_of_local_training():
    """One round by hand, in double precision."""
    made = toys.experiment(FedAvg(), plan=Plan(rounds=1))
    start = made.setup.model.init(0)
    progress = made.run(made.start())
    total = sum(made.federation.size(id) for id in made.federation.participants)
    by_hand = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    for id in made.federation.participants:
        client = toys.Client(
            id,
            made.federation.splits(id).train,
            objective=Classification(3),
            model=made.setup.model,
            training=made.setup.training,
            seed=0,
            round=0,
        )
        for name, value in client.fit(start).items():
            by_hand[name] += value.double() * client.size / total
    for name, value in by_hand.items():
        assert torch.allclose(progress.server[name].double(), value, atol=1e-6)


def test_training_learns():
    made = toys.experiment(FedAvg(), plan=Plan(rounds=20))
    summary = toys.result(made)
    assert summary["final"]["local_accuracy"] > 0.9
    assert summary["final"]["global_accuracy"] > 0.9


def test_the_schedule_counts_rounds_by_stage():
    @dataclass(frozen=True)
    class Staged(FedAvg):
        def stages(self, rounds, model):
            return (
                Stage("a", self.round, rounds=2),
                Stage("b", self.round, first_round=1),
                Stage("c", self.round, rounds=1),
            )

    turns = schedule(Staged(), Plan(rounds=3), toys.model_for(Staged(), toys.federation()), 4)
    found = [(turn.round, turn.stage.name, turn.stage_round) for turn in turns]
    assert found == [(1, "a", 0), (2, "a", 1), (3, "b", 1), (4, "b", 2), (5, "b", 3), (6, "c", 0)]


def test_evaluating_more_often_changes_no_result():
    for algorithm in (toys.Toy(), FedAvgFineTuned(), Local()):
        often = toys.digests(toys.experiment(algorithm, plan=Plan(rounds=4, evaluate_every=1)))
        assert often == toys.digests(
            toys.experiment(algorithm, plan=Plan(rounds=4, evaluate_every=4))
        )


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_stopping_and_going_on_is_a_straight_run(tmp_path, states):
    plan = Plan(rounds=6, cohort=3, evaluate_every=2, checkpoint_seconds=0, client_states=states)
    expected = toys.result(toys.experiment(toys.Toy(), plan=plan))
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = toys.experiment(toys.Toy(), plan=plan, folder=folder)

        def stop(event):
            if event.turn.round == 5:
                raise KeyboardInterrupt

        made.observe = stop
        with pytest.raises(KeyboardInterrupt):
            made.run(made.restore())
        folder.append_record({"round": "written after the checkpoint, to be forgotten"})
        summary = toys.result(toys.experiment(toys.Toy(), plan=plan, folder=folder))
        assert [record["round"] for record in folder.read_records()] == [3, 5, 7]
    for key in ("parameters_sha256", "states_sha256", "bytes", "final", "selected"):
        assert summary[key] == expected[key], key


def test_records_shorter_than_the_checkpoint_says_are_refused(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        toys.result(toys.experiment(FedAvg(), folder=folder))
        folder.records_file.write_text("")
        with pytest.raises(
            CheckpointError, match=r"records.jsonl must have at least \d+ bytes, got 0"
        ):
            toys.experiment(FedAvg(), folder=folder).restore()


def test_bytes_are_those_of_the_trees():
    made = toys.experiment(FedAvg(), plan=Plan(rounds=3, cohort=4))
    size = tree.num_bytes(made.setup.model.init(0))
    traffic = toys.result(made)["bytes"]
    assert traffic["down"] == 3 * 4 * size
    assert traffic["up"] == 3 * 4 * (size + 8)  # and the weight
    assert traffic["evaluation_down"] == (6 + 1) * size


def test_a_publication_is_charged_once_per_client():
    made = toys.experiment(toys.Toy(), plan=Plan(rounds=2))
    params = tree.num_bytes(made.setup.model.init(0))
    traffic = toys.result(made)["bytes"]
    clients, prior, order = 6, 3 * 8, 8
    assert traffic["down"] == clients * (prior + 2 * (order + params))


def test_local_sends_nothing():
    traffic = toys.result(toys.experiment(Local()))["bytes"]
    assert (traffic["down"], traffic["up"]) == (0, 0)


def test_dropouts_are_keyed_and_leave_states_alone():
    lost = [sampling.dropouts("abcdefgh", 0.5, Key(0, "dropout", round)) for round in range(50)]
    assert lost == [
        sampling.dropouts("hgfedcba", 0.5, Key(0, "dropout", round)) for round in range(50)
    ]
    assert 0.4 < sum(map(len, lost)) / 400 < 0.6
    made = toys.experiment(toys.Toy(), plan=Plan(rounds=5, dropout=0.4))
    made.run(made.start())
    visits = {toys.state(made, id)["visits"].item() for id in made.executor.states.ids()}
    assert len(visits) > 1  # each was counted for as many rounds as it answered


def test_a_round_without_an_answer_is_void():
    @dataclass(frozen=True)
    class Silent(toys.Toy):
        def round(self, server, cohort):
            cohort.run(self.count)
            cohort.sum(self.train, each={})
            raise AssertionError("not reached")

    made = toys.experiment(Silent(), plan=Plan(rounds=2))
    progress = made.run(made.start())
    assert progress.round == 3
    assert {toys.state(made, id)["visits"].item() for id in made.executor.states.ids()} == {1}
    assert tree.equal(progress.server["params"], made.setup.model.init(0))


def test_a_reply_that_is_not_finite_is_refused_and_leaves_no_trace():
    made = toys.experiment(toys.Faulty(how="nan"), plan=Plan(rounds=2))
    progress = made.run(made.start())
    assert progress.missing == {"refused": 2}
    assert tree.is_finite(progress.server)
    visits = {id: toys.state(made, id)["visits"].item() for id in made.executor.states.ids()}
    assert (
        visits.pop("client-2") == 3
    )  # counted in the survey and twice since, never doubled by training
    assert set(visits.values()) == {((1 + 1) * 2 + 1) * 2}


def test_a_private_model_that_has_diverged_is_noticed():
    made = toys.experiment(Local(), training=Training(lr=1e6, batch_size=8, momentum=0.0, epochs=1))
    with pytest.raises(
        ClientStepError,
        match="every reply and state must be finite, got NaN or infinity from all of 6 clients",
    ):
        made.run(made.start())


def test_when_every_reply_is_refused_the_run_says_so():
    training = toys.Training(lr=1e30, batch_size=8, momentum=0.0, epochs=1)
    with pytest.raises(
        ClientStepError,
        match="every reply and state must be finite, got NaN or infinity from all of 6 clients",
    ):
        toys.result(toys.experiment(FedAvg(), training=training, plan=Plan(rounds=5)))


def test_whoever_missed_a_stage_for_everyone_is_not_sampled_later():
    seen = set()

    @dataclass(frozen=True)
    class Watched(toys.Toy):
        def round(self, server, cohort):
            seen.update(cohort.ids)
            return server

    made = toys.experiment(Watched(), plan=Plan(rounds=5, dropout=0.3, seed=3))
    progress = made.run(made.start())
    assert progress.absent
    assert seen == set(made.federation.participants) - progress.absent


def test_cohorts_are_drawn_without_replacement_and_by_the_seed():
    ids = [f"{i:02d}" for i in range(20)]
    draws = [sampling.sample(ids, 5, Key(0, round)) for round in range(200)]
    assert all(len(set(draw)) == 5 and list(draw) == sorted(draw) for draw in draws)
    assert draws[0] == sampling.sample(ids[::-1], 5, Key(0, 0))
    counts = torch.bincount(torch.tensor([int(id) for draw in draws for id in draw]), minlength=20)
    assert counts.min() > 25
    assert sampling.sample(ids, 20, Key(0)) == tuple(ids)


def test_cohort_as_number_or_share():
    assert Plan(cohort=3).cohort_size(10) == 3
    assert Plan(cohort=0.25).cohort_size(10) == 2
    assert Plan(cohort=0.01).cohort_size(10) == 1
    with pytest.raises(SettingError, match="cohort must be <= 10, the number of clients, got 11"):
        Plan(cohort=11).cohort_size(10)


def test_the_reported_round_is_chosen_on_validation_or_training_never_on_test():
    for criterion in ("validation", "training"):
        made = toys.experiment(FedAvg(), plan=Plan(rounds=8, evaluate_every=1, select_on=criterion))
        progress = made.run(made.start())
        accuracies = [record[criterion]["accuracy"] for record in made.records]
        assert progress.selected.round == 1 + accuracies.index(max(accuracies))
        assert made.summary(progress)["selected"]["round"] == progress.selected.round
        assert made.summary(progress)["final"]["round"] == 8


def test_groups_are_compared_with_the_truth():
    summary = toys.result(toys.experiment(toys.Toy()))
    assert summary["clusters"] == {
        "ari": 1.0,
        "nmi": 1.0,
        "purity": 1.0,
    }  # sizes alternate as the true groups do


def test_keys_and_rates_use_the_round_within_the_stage():
    """A stage before training changes nothing of it, and `first_round` goes on counting."""

    @dataclass(frozen=True)
    class Late(FedAvg):
        def idle(self, server, cohort):
            return server

        def stages(self, rounds, model):
            return (Stage("idle", self.idle, rounds=2, everyone=True), Stage("train", self.round))

    for plan in (Plan(rounds=4), Plan(rounds=4, cohort=3), Plan(rounds=4, cohort=4, dropout=0.3)):
        assert toys.digests(toys.experiment(Late(), plan=plan)) == toys.digests(
            toys.experiment(FedAvg(), plan=plan)
        )


def test_run_folders(tmp_path):
    with RunFolder.create(tmp_path / "run", "x = 1") as folder:
        with (
            pytest.raises(CheckpointError, match="one process at a time"),
            RunFolder.open(tmp_path / "run"),
        ):
            pass
        assert folder.read_summary() is None
        assert folder.read_records() == []
        folder.append_record({"round": 1})
    with pytest.raises(
        CheckpointError, match="which holds a run: choose another, or go on with `concordfl resume"
    ):
        RunFolder.create(tmp_path / "run", "")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(CheckpointError, match="which holds files: choose another$"):
        RunFolder.create(tmp_path / "other", "")
    with pytest.raises(CheckpointError, match="must hold config.toml"):
        RunFolder.open(tmp_path / "other")


def test_what_a_void_round_has_published_does_not_count():
    @dataclass(frozen=True)
    class Rash(toys.Toy):
        def round(self, server, cohort):
            cohort.publish("prior", {"counts": torch.full((3,), 99.0)})
            cohort.sum(self.train, each={})
            raise AssertionError("not reached")

    made = toys.experiment(Rash(), plan=Plan(rounds=1))
    progress = made.run(made.start())
    assert tree.unpack(progress.publications.data["prior"])["counts"].max() < 99


def test_a_state_changed_in_place_is_kept():
    @dataclass(frozen=True)
    class Sloppy(FedAvg):
        def init_client(self, client, message):
            return {"n": 0}

        @client_step
        def train(self, client, state, message):
            state["n"] += 1
            return state, super().train(client, state, message)[1]

    made = toys.experiment(Sloppy(), plan=Plan(rounds=3))
    made.run(made.start())
    assert toys.state(made, "client-0") == {"n": 3}


def test_a_folder_in_which_a_run_was_killed_at_once_can_be_used(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml.partial").write_text("half")
    (tmp_path / "run/.lock").touch()
    with RunFolder.create(tmp_path / "run", "x = 1") as folder:
        assert (folder.path / "config.toml").read_text() == "x = 1"


def test_new_clients_tune_the_shared_model_if_asked_to():
    """FedAvg then measures new clients as FedAvg-FT does, and participants as before."""

    def last_record(method, tune_new):
        made = toys.experiment(method, plan=Plan(rounds=3, evaluate_every=3, tune_new=tune_new))
        toys.result(made)
        return made.records[-1]

    tuned, plain = last_record(FedAvg(), 2), last_record(FedAvg(), 0)
    assert (
        tuned["global"]
        == last_record(FedAvgFineTuned(tune_epochs=2), 0)["global"]
        != plain["global"]
    )
    assert tuned["local"] == plain["local"]
    assert last_record(FedBN(), 2)["global"] == tuned["global"]  # without normalisation layers
    assert (
        last_record(FedAvgFineTuned(), 2)["global"] == last_record(FedAvgFineTuned(), 0)["global"]
    )  # has a rule of its own


def test_seconds_are_told_by_stage():
    made = toys.experiment(toys.Toy(), plan=Plan(rounds=3))
    seconds = toys.result(made)["seconds"]
    names = [turn.stage.name for turn in made.turns]
    assert {name: stage["rounds"] for name, stage in seconds["stages"].items()} == {
        name: names.count(name) for name in names
    }
    spent = sum(stage["rounds"] * stage["steps_per_round"] for stage in seconds["stages"].values())
    assert spent == pytest.approx(seconds["steps_per_round"] * len(names))
    assert spent < seconds["total"]
