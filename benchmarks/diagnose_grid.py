"""How often `diagnose` is right: planted differences of all kinds, strengths and sizes.

    python benchmarks/diagnose_grid.py run                 # goes on where it was stopped
    python benchmarks/diagnose_grid.py run --hours 0.5 --data table
    python benchmarks/diagnose_grid.py show

Every case is a line of experiments/diagnose/grid.csv. Of each of the three questions, cases in
which its own difference is absent, whatever else is there, count as false alarms if p <= 0.05, the
others as found. Beside it stand two simple rules: the Hellinger distance of label shares above 0.1
(labels), and a permutation test of the maximum mean discrepancy between clients' inputs that sees
all data (features).
"""

import argparse
import csv
import itertools
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import ndimage

import concordfl as cf
from concordfl.core import Key
from concordfl.data.datasets import DATASETS
from concordfl.metrics.agreement import agreement

FILE = Path(__file__).parents[1] / "experiments" / "diagnose" / "grid.csv"
LEVEL = 0.05
STRENGTHS = ("weak", "strong")
NUM_SEEDS, NUM_SEEDS_ALL_THREE = 20, 3
KINDS = ("labels", "concept", "features")
COLUMNS = (
    *("data", "clients", "examples", "strength", "labels", "features", "concept", "seed"),
    *("p_labels", "p_concept", "p_features", "e_labels", "e_concept", "e_features"),
    *("groups", "ari", "hellinger", "p_mmd", "seconds"),
)
MMD_EXAMPLES, MMD_FEATURES, MMD_DRAWS = 2000, 256, 99

# label skew: alpha of a Dirichlet law; features: rotation in degrees, displacement of a table's
# columns that say nothing of the label, in deviations
ALPHA = {"weak": 1.0, "strong": 0.3}
DEGREES = {"weak": 20.0, "strong": 40.0}
DISPLACEMENT = {"weak": 0.3, "strong": 1.0}
# concept of every other client: so many classes of images change places; a table's rule is turned
CHANGED_CLASSES = {"weak": 4, "strong": 10}
TURN = {"weak": 50.0, "strong": 120.0}


class Case(NamedTuple):
    data: str
    clients: int
    examples: int
    strength: str
    labels: bool
    features: bool
    concept: bool
    seed: int

    @property
    def name(self) -> tuple[str, ...]:
        return tuple(str(int(part) if isinstance(part, bool) else part) for part in self)


def cases(data: list[str]) -> list[Case]:
    """All of them, so that whatever part is done is spread over the grid."""
    found = []
    for seed in range(NUM_SEEDS):
        for name, examples, clients in itertools.product(data, (50, 200, 1000), (5, 20)):
            if name == "fashion-mnist" and (examples, clients) != (200, 20):
                continue
            for kinds in itertools.product((False, True), repeat=3):
                if all(kinds) and seed >= NUM_SEEDS_ALL_THREE:
                    continue
                for strength in STRENGTHS if any(kinds) else STRENGTHS[:1]:
                    found.append(Case(name, clients, examples, strength, *kinds, seed))
    return found


# --- planted differences --------------------------------------------------------------------------


def make_clients(case: Case) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], list[int]]:
    """Examples by client, and the true concepts."""
    rng = Key("diagnose grid", *case.name).numpy()
    concepts = rng.permutation(np.arange(case.clients) % 2) * case.concept
    make = _table_clients if case.data == "table" else _image_clients
    found = make(case, rng, concepts)
    return {f"client-{i:02d}": own for i, own in enumerate(found)}, concepts.tolist()


def _shares(case: Case, rng: np.random.Generator, classes: int) -> np.ndarray:
    even = np.full(classes, 1 / classes)
    return rng.dirichlet(np.full(classes, ALPHA[case.strength])) if case.labels else even


def _image_clients(case, rng, concepts):
    x, y = _images(case.data)
    left = {label: list(rng.permutation(np.flatnonzero(y == label))) for label in range(10)}
    changed = CHANGED_CLASSES[case.strength]
    for concept in concepts:
        counts = rng.multinomial(case.examples, _shares(case, rng, 10))
        rows = [
            left[label].pop() for label in range(10) for _ in range(counts[label]) if left[label]
        ]
        own_x, own_y = x[rows], y[rows]
        if case.features:
            degrees = rng.uniform(-1, 1) * DEGREES[case.strength]
            own_x = ndimage.rotate(own_x, degrees, axes=(1, 2), reshape=False, order=1)
        if concept:
            own_y = np.where(own_y < changed, (own_y + 1) % changed, own_y)
        yield own_x[..., None], own_y


_LOADED: dict[str, tuple[np.ndarray, np.ndarray]] = {}


def _images(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name not in _LOADED:
        data = DATASETS["mnist" if name == "digits" else name]().load(Key("diagnose grid"))
        x = data.train.x.reshape(len(data.train.x), *data.train.x.shape[1:3])
        _LOADED[name] = x, np.asarray(data.train.y).astype(np.int64)
    return _LOADED[name]


def _table_clients(case, rng, concepts):
    """Three classes, by a noisy rule in the plane of the first two of twelve columns, which have
    heavier tails than normal ones; the last six say nothing of the class.
    """
    for concept in concepts:
        pool = 40 * case.examples
        x = rng.standard_t(8, size=(pool, 12))
        x[:, 6:] += 0.5 * x[:, :6]
        angle = np.arctan2(x[:, 1], x[:, 0]) + rng.normal(0, 0.3, pool)
        angle += np.deg2rad(TURN[case.strength]) * concept
        y = np.floor((angle % (2 * np.pi)) / (2 * np.pi / 3)).astype(np.int64).clip(0, 2)
        counts = rng.multinomial(case.examples, _shares(case, rng, 3))
        rows = np.concatenate([np.flatnonzero(y == label)[: counts[label]] for label in range(3)])
        x, y = x[rows], y[rows]
        if case.features:
            x[:, 6:] += DISPLACEMENT[case.strength] * rng.normal(size=6)
        order = rng.permutation(len(y))
        yield x[order].astype(np.float32), y[order]


# --- simple rules ---------------------------------------------------------------------------------


def hellinger(clients: dict) -> float:
    """The mean distance of clients' label shares from the pooled ones."""
    most = max(y.max() for _, y in clients.values()) + 1
    table = np.array([np.bincount(y, minlength=most) for _, y in clients.values()])
    shares, pooled = table / table.sum(1, keepdims=True), table.sum(0) / table.sum()
    return float(np.sqrt(((np.sqrt(shares) - np.sqrt(pooled)) ** 2).sum(1) / 2).mean())


def mmd(clients: dict, rng: np.random.Generator) -> float:
    """p of a difference between clients' inputs, by random Fourier features and permutations."""
    x = np.concatenate([x.reshape(len(x), -1) for x, _ in clients.values()]).astype(float)
    owner = np.repeat(np.arange(len(clients)), [len(y) for _, y in clients.values()])
    rows = rng.permutation(len(x))[:MMD_EXAMPLES]
    x, owner = x[rows], owner[rows]
    x = (x - x.mean(0)) / max(float(np.sqrt(x.var(0).sum())), 1e-12)
    waves = x @ rng.normal(size=(x.shape[1], MMD_FEATURES)) + rng.uniform(0, 6.28, MMD_FEATURES)
    features = np.cos(waves) - np.cos(waves).mean(0)

    def statistic(owner: np.ndarray) -> float:
        belongs = np.eye(len(clients))[owner]
        return float(((belongs.T @ features) ** 2 / np.maximum(belongs.sum(0), 1)[:, None]).sum())

    drawn = [statistic(rng.permutation(owner)) for _ in range(MMD_DRAWS)]
    return float(1 + sum(value >= statistic(owner) for value in drawn)) / (1 + MMD_DRAWS)


# --- running and showing --------------------------------------------------------------------------


def run_case(case: Case) -> dict[str, object]:
    clients, concepts = make_clients(case)
    began = time.monotonic()
    found = cf.diagnose(clients=clients, run={"executor": "serial"}, seed=case.seed)
    seconds = time.monotonic() - began
    groups = [found.groups[id] for id in clients]
    row: dict[str, object] = dict(zip(Case._fields, case.name, strict=True))
    for kind in KINDS:
        row[f"p_{kind}"] = f"{found[kind]['p']:.3g}"
        row[f"e_{kind}"] = f"{found[kind]['effect']:.3g}"
    return row | {
        "groups": found.content["groups"],
        "ari": f"{agreement(groups, concepts).ari:.2f}",
        "hellinger": f"{hellinger(clients):.3f}",
        "p_mmd": mmd(clients, Key("mmd", *case.name).numpy()),
        "seconds": f"{seconds:.2f}",
    }


def read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


def run(data: list[str], hours: float, file: Path, share: tuple[int, int]) -> None:
    done = {tuple(row[name] for name in Case._fields) for row in read(file)}
    file.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 3600 * hours
    for number, case in enumerate(cases(data)):
        if case.name in done or number % share[1] != share[0]:
            continue
        if time.monotonic() > end:
            print(f"stopped after {hours} hours; run it again to go on")
            return
        row = run_case(case)
        is_new = not file.exists() or not file.stat().st_size
        with open(file, "a", newline="") as lines:
            writer = csv.DictWriter(lines, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
            lines.flush()
            os.fsync(lines.fileno())


def show(file: Path) -> None:
    rows = read(file)
    print(f"{len(rows):,} cases")
    for kind in KINDS:
        print(f"\n{kind}: share of cases with p <= {LEVEL} (number), by what else is there")
        others = [other for other in KINDS if other != kind]
        table = defaultdict(list)
        for row in rows:
            beside = "+".join(other for other in others if row[other] == "1") or "nothing else"
            said = float(row[f"p_{kind}"]) <= LEVEL
            strength = row["strength"] if row[kind] == "1" else "absent"
            key = (row["data"], f"{row['clients']} x {row['examples']}", beside)
            table[key, strength].append(said)
            table[(row["data"], "all", beside), strength].append(said)
            table[
                ("all", "200 or more" if int(row["examples"]) >= 200 else "50", "all"), strength
            ].append(said)
        keys = sorted({key for key, _ in table}, key=str)
        head = f"{'data':<15}{'clients x examples':<20}{'beside':<20}"
        print(head + "".join(f"{name:>14}" for name in ("false alarms", *STRENGTHS)))
        for key in keys:
            cells = [_share(table.get((key, name), [])) for name in ("absent", "weak", "strong")]
            print(
                f"{key[0]:<15}{key[1]:<20}{key[2]:<20}" + "".join(f"{cell:>14}" for cell in cells)
            )
    _show_confusion(rows)
    _show_baselines(rows)


def _share(said: list[bool]) -> str:
    return f"{np.mean(said):.2f} ({len(said)})" if said else "-"


def _show_confusion(rows: list[dict[str, str]]) -> None:
    print("\nconfusion, 200 examples or more: true differences against those named")
    table = defaultdict(int)
    for row in rows:
        if int(row["examples"]) >= 200:
            truth = "+".join(kind for kind in KINDS if row[kind] == "1") or "none"
            said = "+".join(kind for kind in KINDS if float(row[f"p_{kind}"]) <= LEVEL) or "none"
            table[truth, said] += 1
    for truth in sorted({truth for truth, _ in table}):
        own = {said: count for (other, said), count in table.items() if other == truth}
        parts = sorted(own.items(), key=lambda part: -part[1])
        print(f"  {truth:<26}" + ", ".join(f"{said} {count}" for said, count in parts))


def _show_baselines(rows: list[dict[str, str]]) -> None:
    print("\nsimple rules, false alarms and found:")
    for name, kind, says in (
        ("Hellinger > 0.1", "labels", lambda row: float(row["hellinger"]) > 0.1),
        ("MMD p <= 0.05", "features", lambda row: float(row["p_mmd"]) <= LEVEL),
    ):
        false = [says(row) for row in rows if row[kind] == "0"]
        found = [says(row) for row in rows if row[kind] == "1"]
        print(f"  {name:<18}{kind:<10}{_share(false):>14}{_share(found):>14}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--data", nargs="+", default=["digits", "table", "fashion-mnist"])
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help="of several processes")
    given = parser.parse_args()
    if given.what == "run":
        run(given.data, given.hours, given.file, tuple(given.share))
    else:
        show(given.file)


if __name__ == "__main__":
    main()
