"""`diagnose`: how clients' data differ, asked of the same sources as `run`."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import numpy as np
from typing_extensions import TypedDict

from ..assemble import federation_key, make_model, make_objective, make_setup
from ..config import DEFAULT_MODEL, Config, ModelChoice
from ..core import Aggregation, SettingError, Training
from ..core.settings import received
from ..data import Dataset, Federation
from ..data.datasets import DATASETS
from ..data.preprocessing import Preprocessing, kind_of_targets
from ..data.targets import decide
from ..engine.choice import available_cores, choose
from ..engine.experiment import Experiment
from ..engine.files import SealedJson, make_folder
from ..engine.plan import Plan
from ..engine.records import DIAGNOSIS_FILE
from ..engine.roster import Roster
from ..engine.threads import one_thread
from ..inputs import Source, load_config, read_inputs
from ..scenarios import build_federation
from .answers import Answer, Answers, ClientLine, Names, Questions, answer
from .method import Diagnose
from .recommend import Advice, Facts, recommend

FORMAT = 2
MIN_CLIENTS_FOR_WORKERS = 100  # below, worker processes do not repay their start
QUESTIONS = ("labels", "concept", "features", "amount")


class Traffic(TypedDict):
    """Bytes of a client in the whole diagnosis, on average."""

    up_per_client: int
    down_per_client: int


class Chosen(TypedDict):
    """What `auto` has made of a diagnosis."""

    purpose: str
    method: str
    settings: dict[str, Any]
    because: str
    passed_over: list[str]  # methods that were recommended more, and why they cannot be used


class Content(TypedDict):
    """What diagnosis.json holds."""

    questions: Questions
    groups: int
    cautions: list[str]
    recommendation: Advice
    clients: dict[str, ClientLine]
    settings: dict[str, Any]
    executor: str
    seed: int
    traffic: Traffic
    seconds: float
    chosen: NotRequired[Chosen]


SEALED = SealedJson(Content, FORMAT, advice="diagnose again, which takes minutes", indent=2)


@dataclass(frozen=True)
class Diagnosis:
    """Four answers, what cannot be told, and a line for every client."""

    content: Content

    def __getitem__(self, question: str) -> Answer:
        """The answer to one of the four questions, by its name."""
        if question not in QUESTIONS:
            raise KeyError(f"a question must be one of {', '.join(QUESTIONS)}, got {question!r}")
        found: Answer = self.content["questions"][question]  # type: ignore[literal-required]
        return found

    @property
    def groups(self) -> dict[str, int]:
        """The concept group of every client; 0 for all where there is one concept."""
        return {id: line["group"] for id, line in self.content["clients"].items()}

    @property
    def sentences(self) -> list[str]:
        """The answers in plain words, and then what cannot be told."""
        return [*(self[name]["sentence"] for name in QUESTIONS), *self.content["cautions"]]

    @property
    def recommendation(self) -> Advice:
        """Methods with their settings, the best first, and why: "local", for the clients
        themselves, and "global", for new ones.
        """
        return self.content["recommendation"]

    def save(self, folder: str | Path) -> Path:
        """Write diagnosis.json into `folder`."""
        make_folder(Path(folder))
        file = Path(folder) / DIAGNOSIS_FILE
        SEALED.write(file, self.content)
        return file

    def to_bytes(self) -> bytes:
        """What `save` writes."""
        return SEALED.seal(self.content).encode()


def load_diagnosis(folder: str | Path) -> Diagnosis:
    """What `save` has written."""
    content = SEALED.read(Path(folder) / DIAGNOSIS_FILE)
    if content is None:
        raise SettingError(f"the folder must hold {DIAGNOSIS_FILE}, got {folder}")
    return Diagnosis(content)


def diagnose(
    source: Source | None = None,
    *,
    clients: object = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    dimensions: int | None = None,
    max_groups: int | None = None,
    margin: float | None = None,
    **sections: Mapping[str, Any],
) -> Diagnosis:
    """How clients' data differ: in labels, concept, features and amount.

    Data are given as to `run`: a run file, a dict of sections, `clients` from memory, or sections
    by name. Of a run file the training examples are looked at; of data given without a scenario,
    all examples. With `out`, diagnosis.json is written into that folder.

    dimensions: of the features (20); max_groups: concept groups at most (4); margin: how many
        further examples a group's rule must get right to count as a concept (0.02).
    """
    given = {"dimensions": dimensions, "max_groups": max_groups, "margin": margin}
    method = Diagnose.from_table(
        {name: value for name, value in given.items() if value is not None}, "diagnose"
    )
    settings = _settings(source, clients, client, label, seed, sections)
    found = diagnose_clients(load_clients(settings), settings, method)
    if out is not None:
        found.save(out)
    return found


def _settings(
    source: Source | None,
    clients: object,
    client: str | None,
    label: str | Sequence[str] | None,
    seed: int | None,
    sections: Mapping[str, Any],
) -> Config:
    """A run's settings; without a scenario, every example is a training example."""
    given = {"clients": clients, "client": client, "label": label, "seed": seed, **sections}
    if isinstance(source, Config):
        return load_config(source, **given)
    inputs = read_inputs(source, **given)
    if "scenario" not in inputs.table:
        inputs.table["scenario"] = {"split": [1.0, 0.0, 0.0]}
    return inputs.config()


def _without_training(settings: Config, method: Diagnose) -> Config:
    """The same clients with nothing of how they would train: everybody is asked, and answers.

    States are kept in memory, as a diagnosis has no folder.
    """
    plan = replace(settings.run, dropout=0.0, min_replies=1, rounds=1, client_states="memory")
    return replace(
        settings,
        algorithm=method,
        model=ModelChoice(DEFAULT_MODEL, {}),
        aggregation=Aggregation(),
        training=Training(),
        run=plan,
    )


def data_settings(path: str, client: str | None, label: str | None) -> dict[str, Any]:
    """The sections of a run for `concordfl diagnose DATA`: a table, a folder or a data set."""
    options = {"client": client, "label": label}
    options = {name: value for name, value in options.items() if value is not None}
    if Path(path).is_dir():
        if client is not None:
            raise SettingError(
                f"--client must be a column of one table, got {received(client)} for a folder, "
                "whose files say whose they are"
            )
        return {"data": {"folder": path, **options}}
    if Path(path).is_file():
        return {"data": {"table": path, **options}}
    if path in DATASETS and not options:
        return {"data": {"name": path}}
    raise SettingError(
        "what is diagnosed must be a run file (.toml), a table (.csv), a folder or the name of a "
        f"data set, got {received(path)}"
    )


class Clients(NamedTuple):
    """Whom a diagnosis is of."""

    data: Dataset
    federation: Federation


def load_clients(settings: Config) -> Clients:
    """The clients of a run; too few of them, or other labels than classes, are refused."""
    data = _load(settings)
    federation = build_federation(
        data, settings.scenario, federation_key(settings), standardise=settings.data.standardise
    )
    if len(federation.participants) < 2:
        raise SettingError(
            f"there must be at least 2 clients to compare, got {len(federation.participants)}"
        )
    return Clients(data, federation)


def diagnose_clients(clients: Clients, settings: Config, method: Diagnose) -> Diagnosis:
    """Of the clients of a run, as its settings say."""
    began = time.monotonic()
    settings = _without_training(settings, method)
    data, federation = clients
    model = make_model(settings, federation)
    setup = make_setup(settings, model, make_objective(settings, federation))
    plan = _with_executor(settings.run, len(federation.participants))
    choice = choose(setup, federation, plan)
    with closing(choice.make(setup, federation, plan, None)) as executor:
        roster = Roster.from_federation(federation, setup)
        experiment = Experiment(setup, roster, plan, executor)
        progress = experiment.start()
        with one_thread():
            for turn in experiment.turns:
                experiment.play(turn, progress)
    known = federation.preprocessing
    names = Names(tuple(map(str, known.classes)), _feature_names(known))
    answers = answer(progress.server, names, method.draws, settings.run.seed)
    _add_missing(answers, data)
    count = len(federation.participants)
    traffic: Traffic = {
        "up_per_client": progress.traffic.up // count,
        "down_per_client": progress.traffic.down // count,
    }
    questions: Questions = {
        "labels": answers["labels"],
        "concept": answers["concept"],
        "features": answers["features"],
        "amount": answers["amount"],
    }
    facts = Facts.of(questions, answers["groups"], answers["clients"])
    return Diagnosis(
        {
            "questions": questions,
            "groups": answers["groups"],
            "cautions": answers["cautions"],
            "recommendation": recommend(facts),
            "clients": answers["clients"],
            "settings": method.to_table(),
            "executor": choice.name,
            "seed": settings.run.seed,
            "traffic": traffic,
            "seconds": time.monotonic() - began,
        }
    )


def _with_executor(plan: Plan, clients: int) -> Plan:
    """`auto`, which judges by training, and clients computed together, which is about training too,
    become worker processes where there are many clients.
    """
    if plan.executor not in ("auto", "vectorized"):
        return plan
    is_worth_it = clients >= MIN_CLIENTS_FOR_WORKERS and available_cores() > 1
    return replace(plan, executor="processes" if is_worth_it else "serial")


def _feature_names(known: Preprocessing) -> tuple[str, ...]:
    """Of a table; columns without names have numbers. Pixels have no names."""
    if known.features or len(known.input_shape) != 1:
        return known.features
    return tuple(f"column {number + 1}" for number in range(known.input_shape[0]))


def _load(settings: Config) -> Dataset:
    data = settings.data.load(federation_key(settings).child("data"))
    data = decide(data, settings.objective.kind)
    kind = kind_of_targets(data.train.y)
    if kind != "classification":
        raise SettingError(f"diagnose needs labels that are classes, got data for {kind}")
    return data


def _add_missing(answers: Answers, data: Dataset) -> None:
    """Missing values, which are filled in before clients' steps see them: counted from the table,
    where it says whose each row is.
    """
    x = data.train.x
    if data.owners is None or x.dtype.kind != "f":
        return
    absent = np.isnan(x.reshape(len(x), -1)).sum(1)
    if not absent.any():
        return
    for id, line in answers["clients"].items():
        line["missing_values"] = int(absent[np.asarray(data.owners) == id].sum())
    total = sum(line["missing_values"] for line in answers["clients"].values())
    sentence = answers["amount"]["sentence"]
    answers["amount"]["sentence"] = f"{sentence[:-1]}; {total:,} values are missing."
