"""Which method for which diagnosis? Candidate methods on experiments/diagnose/settings, beside what
`diagnose` says of each setting; the rules that `diagnose` recommends by are made from this.

    python benchmarks/recommend.py run              # goes on where it was stopped
    python benchmarks/recommend.py rules            # writes src/concordfl/diagnosis/rules.toml
    python benchmarks/recommend.py show             # regret with every setting left out in turn

Figures are kept in experiments/diagnose/recommend.csv, a line per run; one whose configuration has
changed since does not count and is computed again. Methods with K models have the number of groups
that was found, or their default where no concept was.
"""

import argparse
import csv
import io
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from concordfl import runner
from concordfl.algorithms import ALGORITHMS
from concordfl.config import Config, read_table
from concordfl.diagnosis import recommend
from concordfl.diagnosis.recommend import (
    LEVELS,
    PURPOSES,
    RULES_FILE,
    Facts,
    Purpose,
    Rule,
    conditions_of,
    find_rule,
    method_settings,
)
from concordfl.diagnosis.run import diagnose
from concordfl.engine.files import write_atomically
from concordfl.study.cells import ConfigHasher, cells

FOLDER = Path(__file__).parents[1] / "experiments/diagnose"
SETTINGS, RESULTS = FOLDER / "settings", FOLDER / "recommend.csv"
METHODS = (
    *("local", "fedavg", "fedavg-ft", "ditto", "apfl", "feddual"),
    *("ifca", "fedem", "fedconceptem", "fedconcat", "concord"),
)
ALWAYS = ("concord", "fedavg-ft", "fedconceptem")  # what the rules are compared with
SEEDS = (0, 1)
MIN_SETTINGS = 2  # that a rule is made from
PRIOR_SETTINGS = 1.0  # that the mean over all settings counts for in every rule


class Row(NamedTuple):
    """A line of the results: what was diagnosed, and accuracies in percent."""

    setting: str
    seed: str
    clients: str
    examples: str  # median of clients' training examples
    labels: str  # effects; 0 where the difference is not named
    concept: str
    features: str
    groups: str
    method: str
    local: str
    new: str  # empty where the method has nothing for new clients, or there are none
    seconds: str
    config_hash: str

    @property
    def facts(self) -> Facts:
        return Facts(
            int(self.clients),
            float(self.examples),
            float(self.labels),
            float(self.concept),
            float(self.features),
            int(self.groups),
        )


Key = tuple[str, str, str]  # setting, seed, method
Rows = Mapping[Key, Row]


def read_rows() -> dict[Key, Row]:
    if not RESULTS.exists():
        return {}
    with open(RESULTS, newline="") as file:
        rows = [Row(**line) for line in csv.DictReader(file)]
    return {(row.setting, row.seed, row.method): row for row in rows}


def write_rows(rows: Rows) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows[key] for key in sorted(rows))
    write_atomically(RESULTS, text.getvalue())


def all_settings() -> list[str]:
    return sorted(path.stem for path in SETTINGS.glob("*.toml"))


# --- running --------------------------------------------------------------------------------------


def config(setting: str, seed: int, method: str, facts: Facts) -> Config:
    table = read_table(SETTINGS / f"{setting}.toml")
    executor = "vectorized" if ALGORITHMS[method].vectorizes else "serial"
    # only the last round counts
    table["run"] = {**table.get("run", {}), "executor": executor, "evaluate_every": 1000}
    table["compare"] = {method: method_settings(method, facts)}
    if method == "fedavg":
        table["algorithm"] = {"name": method}
        del table["compare"]
    return cells(table, [method], [seed])[method, seed]


def diagnosed(setting: str, seed: int) -> Facts:
    table = read_table(SETTINGS / f"{setting}.toml")
    found = diagnose({**table, "run": {"seed": seed, "executor": "serial"}}).content
    return Facts.of(found["questions"], found["groups"], found["clients"])


def run(hours: float) -> None:
    rows, hasher = read_rows(), ConfigHasher()
    end = time.monotonic() + 3600 * hours
    for seed in SEEDS:
        for setting in all_settings():
            facts: Facts | None = None
            for method in METHODS:
                key = (setting, str(seed), method)
                if facts is None:
                    kept = rows.get(key)
                    facts = kept.facts if kept else diagnosed(setting, seed)
                settings = config(setting, seed, method, facts)
                config_hash = hasher(settings)
                if key in rows and rows[key].config_hash == config_hash:
                    continue
                if time.monotonic() > end:
                    print(f"stopped after {hours} hours; run it again to go on")
                    return
                rows[key] = compute(setting, seed, method, facts, settings, config_hash)
                write_rows(rows)
                print(*rows[key][:-1], flush=True)


def compute(
    setting: str, seed: int, method: str, facts: Facts, settings: Config, config_hash: str
) -> Row:
    summary = runner.run(settings).summary
    final = summary["final"]
    return Row(
        setting,
        str(seed),
        str(facts.clients),
        f"{facts.examples:g}",
        *(f"{effect:.3g}" for effect in (facts.labels, facts.concept, facts.features)),
        str(facts.groups),
        method,
        _percent(final.get("local_accuracy")),
        _percent(final.get("global_accuracy")),
        f"{summary['seconds']['total']:.1f}",
        config_hash,
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


# --- rules ----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What was diagnosed of a setting with one seed, and what its methods come to, for one purpose:
    points behind the best method, both as means over seeds.
    """

    setting: str
    facts: Facts
    behind: Mapping[str, float]


def cases(rows: Rows, purpose: Purpose) -> list[Case]:
    """Those in which every method that has a figure at all has been run."""
    complete: dict[str, list[dict[str, Row]]] = {}
    for setting, seed in sorted({key[:2] for key in rows}):
        own = {name: rows[setting, seed, name] for name in METHODS if (setting, seed, name) in rows}
        if len(own) == len(METHODS):
            complete.setdefault(setting, []).append(own)
    found = []
    for setting, by_seed in complete.items():
        means = {name: _mean_figure([own[name] for own in by_seed], purpose) for name in METHODS}
        known = {name: mean for name, mean in means.items() if mean is not None}
        if known:
            behind = {name: max(known.values()) - mean for name, mean in known.items()}
            found += [Case(setting, own[METHODS[0]].facts, behind) for own in by_seed]
    return found


def _mean_figure(rows: Sequence[Row], purpose: Purpose) -> float | None:
    figures = [row.local if purpose == "local" else row.new for row in rows]
    return statistics.mean(float(one) for one in figures) if all(figures) else None


def make_rules(rows: Rows, without: str | None = None) -> list[Rule]:
    """From all settings but one: a rule for every combination of answers that several settings
    have, the closest look first.
    """
    made = []
    for purpose in PURPOSES:
        own = [case for case in cases(rows, purpose) if case.setting != without]
        overall = ranking(own)
        for level in LEVELS:
            groups: dict[tuple[str | bool, ...], list[Case]] = {}
            for case in own:
                answers = conditions_of(case.facts)
                groups.setdefault(tuple(answers[name] for name in level), []).append(case)
            for values, members in sorted(groups.items(), key=str):
                settings = sorted({case.setting for case in members})
                if len(settings) >= MIN_SETTINGS or not level:
                    holds = dict(zip(level, values, strict=True))
                    made.append(Rule(purpose, holds, settings, ranking(members, overall)))
    return [rule for place, rule in enumerate(made) if not _is_repeated(rule, made[place + 1 :])]


def _is_repeated(rule: Rule, later: Sequence[Rule]) -> bool:
    """Whether the next rule that holds wherever this one does was made from the same settings."""
    wider = (
        other
        for other in later
        if other.purpose == rule.purpose and other.holds.items() <= rule.holds.items()
    )
    following = next(wider, None)
    return following is not None and following.settings == rule.settings


def ranking(
    members: Sequence[Case], overall: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Expected points behind the best, of the methods that all cases have: the mean over settings,
    which count alike, drawn to `overall` as few settings say little.
    """
    settings = sorted({case.setting for case in members})
    known = set.intersection(*(set(case.behind) for case in members))
    means = {}
    for method in sorted(known):
        by_setting = [
            statistics.mean(case.behind[method] for case in members if case.setting == setting)
            for setting in settings
        ]
        prior = PRIOR_SETTINGS if overall and method in overall else 0.0
        drawn = sum(by_setting) + (prior * overall[method] if overall and prior else 0.0)
        means[method] = drawn / (len(settings) + prior)
    return dict(sorted(means.items(), key=lambda pair: pair[1]))


def rules_text(rules: Sequence[Rule]) -> str:
    """As TOML."""
    lines = ["# Made by `python benchmarks/recommend.py rules` from experiments/diagnose."]
    for rule in rules:
        behind = ", ".join(f"{method} = {value:.2f}" for method, value in rule.behind.items())
        holds = ", ".join(f"{name} = {_toml(is_)}" for name, is_ in rule.holds.items())
        lines += [
            "",
            "[[rule]]",
            f'purpose = "{rule.purpose}"',
            f"holds = {{ {holds} }}" if holds else "holds = {}",
            f"settings = {_toml(list(rule.settings))}",
            f"behind = {{ {behind} }}",
        ]
    return "\n".join(lines) + "\n"


def _toml(value: str | bool | list[str]) -> str:
    """A value as TOML has it; those of a rule are written as in JSON."""
    return json.dumps(value)


# --- regret ---------------------------------------------------------------------------------------


def tables(rows: Rows) -> Iterator[str]:
    """Points behind the method that is best in the mean over seeds, with rules that were made
    without the setting itself; beside it, those of one method for all.
    """
    for purpose in PURPOSES:
        own = cases(rows, purpose)
        settings = sorted({case.setting for case in own})
        regrets = {setting: _regrets(rows, own, setting, purpose) for setting in settings}
        yield f"| {purpose} | recommended | its regret | {' | '.join(ALWAYS)} |"
        yield "|---" * (3 + len(ALWAYS)) + "|"
        for setting, (names, figures) in regrets.items():
            yield f"| {setting} | {names} | {' | '.join(f'{one:.1f}' for one in figures)} |"
        columns = np.array([figures for _, figures in regrets.values()])
        yield f"| mean | | {' | '.join(f'{one:.1f}' for one in columns.mean(0))} |"
        within = (columns <= 1).sum(0)
        listed = " | ".join(f"{one} of {len(settings)}" for one in within)
        yield f"| at most 1 point | | {listed} |"
        yield ""


def _regrets(
    rows: Rows, own: Sequence[Case], setting: str, purpose: Purpose
) -> tuple[str, list[float]]:
    """What is recommended for a setting, and the regrets of that and of one method for all."""
    left_out = make_rules(rows, without=setting)
    members = [case for case in own if case.setting == setting]
    chosen = [_first(left_out, case, purpose) for case in members]
    pairs = zip(members, chosen, strict=True)
    regrets = [
        statistics.mean(case.behind[method] for case, method in pairs),
        *(statistics.mean(case.behind[name] for case in members) for name in ALWAYS),
    ]
    return ", ".join(dict.fromkeys(chosen)), regrets


def _first(rules: Sequence[Rule], case: Case, purpose: Purpose) -> str:
    """The method that a rule names first, of those that have a figure here."""
    rule = find_rule(rules, case.facts, purpose)
    return next(method for method in rule.behind if method in case.behind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", choices=("run", "rules", "show"))
    parser.add_argument("--hours", type=float, default=3.0)
    given = parser.parse_args()
    if given.what == "run":
        run(given.hours)
    elif given.what == "rules":
        folder = Path(recommend.__file__).parent
        write_atomically(folder / RULES_FILE, rules_text(make_rules(read_rows())))
    else:
        print("\n".join(tables(read_rows())))


if __name__ == "__main__":
    main()
