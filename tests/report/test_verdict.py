"""What a comparison says: who is best, by how much, whether that is chance, and who loses."""

import numpy as np
import pytest
from scipy import stats

from concordfl.report import verdict


def run(scores, *, warnings=(), mean=None, criterion="accuracy", kept=True):
    """The figures of a run whose clients have these scores."""
    average = sum(scores) / len(scores) if mean is None else mean
    figures = {"final": {"round": 4, f"local_{criterion}": average}, "warnings": list(warnings)}
    named = {f"client-{place}": value for place, value in enumerate(scores)}
    return {**figures, "client_scores": named} if kept else figures


def kinds(runs):
    return {each["kind"] for each in verdict.warnings(runs)}


def texts(runs, kind):
    return [each["text"] for each in verdict.warnings(runs) if each["kind"] == kind]


LOW = [0.50, 0.52, 0.55, 0.58, 0.60, 0.61, 0.62, 0.65]
CLEARLY_HIGHER = [0.60, 0.63, 0.67, 0.71, 0.74, 0.76, 0.78, 0.82]
MIXED = [0.60, 0.42, 0.66, 0.47, 0.72, 0.49, 0.75, 0.61]


# --- differences ----------------------------------------------------------------------------------


def test_one_seed_is_paired_over_clients():
    found = verdict.difference([run(CLEARLY_HIGHER)], [run(LOW)], "accuracy")
    expected = stats.wilcoxon(np.array(CLEARLY_HIGHER) - LOW).pvalue
    assert found.p == pytest.approx(expected)
    assert (found.over, found.is_significant) == ("8 clients", True)
    assert found.mean == pytest.approx(np.mean(CLEARLY_HIGHER) - np.mean(LOW))


def test_several_seeds_are_paired_over_seeds():
    left, right = [[0.6, 0.7], [0.7, 0.9], [0.5, 0.7]], [[0.5, 0.6], [0.6, 0.7], [0.4, 0.5]]
    found = verdict.difference([run(s) for s in left], [run(s) for s in right], "accuracy")
    expected = stats.ttest_rel([np.mean(s) for s in left], [np.mean(s) for s in right]).pvalue
    assert found.p == pytest.approx(expected)
    assert found.over == "3 seeds"


def test_seeds_without_clients_figures_are_paired_by_their_means():
    left = [run(scores, kept=False) for scores in ([0.6, 0.8], [0.7, 0.9])]
    right = [run(scores) for scores in ([0.6, 0.6], [0.5, 0.7])]
    assert verdict.difference(left, right, "accuracy").mean == pytest.approx(0.15)


def test_few_clients_or_unknown_ones_say_nothing_of_chance():
    assert verdict.difference([run([0.9] * 5)], [run([0.1] * 5)], "accuracy").p is None
    unknown = verdict.difference([run(CLEARLY_HIGHER, kept=False)], [run(LOW)], "accuracy")
    assert (unknown.p, unknown.is_significant) == (None, False)


def test_equal_runs_do_not_differ():
    same = verdict.difference([run(LOW)], [run(LOW)], "accuracy")
    assert (same.mean, same.p) == (0.0, 1.0)
    twice = verdict.difference([run(LOW)] * 2, [run(LOW)] * 2, "accuracy")
    assert (twice.mean, twice.p) == (0.0, 1.0)


def test_equal_differences_of_seeds_are_no_evidence():
    left, right = [run([0.6, 0.8]), run([0.5, 0.7])], [run([0.59, 0.79]), run([0.49, 0.69])]
    found = verdict.difference(left, right, "accuracy")
    assert (found.mean, found.p) == (pytest.approx(0.01), None)
    runs = {"fedem": left, "fedavg": right}
    assert verdict.verdict(runs) == (
        "Ahead for participants: fedem, 1.0 points better than fedavg; whether that is chance is "
        "not known."
    )
    large = [run([2e6 / 3 + seed], criterion="rmse") for seed in (0.1, 0.7)]
    larger = [run([5e6 / 3 + seed], criterion="rmse") for seed in (0.1, 0.7)]
    assert verdict.difference(large, larger, "rmse").p is None


def test_seeds_that_are_known_on_one_side_only_are_not_paired():
    unknown = {"final": {"round": 4, "local_accuracy": None}}
    left, right = [run([0.8]), unknown], [unknown, run([0.6])]
    found = verdict.difference(left, right, "accuracy")
    assert found == verdict.Difference(pytest.approx(0.2), None, "")


def test_less_is_better_where_the_criterion_says_so():
    runs = {
        "fedavg": [run([2.0] * 7, criterion="rmse")],
        "fedem": [run([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], criterion="rmse")],
        "local": [run([3.0, 0.5, 3.0, 3.0, 3.0, 3.0, 3.0], criterion="rmse")],
    }
    assert verdict.criterion_of(runs) == "rmse"
    assert verdict.ranking(runs, "rmse") == ["fedem", "fedavg", "local"]
    gain = verdict.gain(runs, "fedem", "rmse")
    assert (gain.better, gain.worse, gain.worst) == (6, 1, pytest.approx(-0.6))
    assert verdict.verdict(runs).startswith(
        "Best for participants: fedem, 0.7 (RMSE) better than fedavg"
    )


# --- the sentence ---------------------------------------------------------------------------------


def test_a_clear_winner_is_named_with_those_who_lose():
    runs = {"local": [run(LOW)], "fedavg": [run([value - 0.1 for value in LOW])]}
    runs["fedem"] = [run([*CLEARLY_HIGHER[:-1], 0.61])]
    assert verdict.verdict(runs) == (
        "Best for participants: fedem, 10.9 points better than local, which is more than chance "
        "(p = 0.016, paired over 8 clients). It is better than local at 7 of 8 clients, worse at "
        "1, at worst by 4.0 points."
    )
    assert "spread" not in kinds(runs)


def test_clients_of_several_seeds_are_counted_once_per_seed():
    runs = {"local": [run(LOW), run(LOW)], "fedem": [run(CLEARLY_HIGHER)] * 2}
    assert "at 16 of 16 clients (each once per seed, 2 seeds)" in verdict.verdict(runs)


def test_a_lead_that_may_be_chance_has_no_winner():
    runs = {"fedavg": [run(LOW)], "fedem": [run(MIXED)]}
    text = verdict.verdict(runs)
    assert text.startswith("No method is clearly best for participants: fedem is 1.1 points better")
    (warning,) = texts(runs, "spread")
    assert warning.startswith(
        "fedem and fedavg differ by no more than chance would make: 1.1 points"
    )
    assert "paired over 8 clients" in warning


def test_methods_that_are_equal_are_said_to_be():
    runs = {"fedavg": [run(LOW)], "fedavg-ft": [run(LOW)], "local": [run([0.4] * 8)]}
    assert verdict.verdict(runs) == (
        "No method is clearly best for participants: fedavg and fedavg-ft are equal on the mean. "
        "fedavg is better than local at 8 of 8 clients and worse at none."
    )
    assert texts(runs, "spread") == ["fedavg and fedavg-ft are equal on the mean"]


def test_a_difference_too_small_to_be_shown_is_not_0():
    runs = {"fedavg": [run(LOW)], "fedem": [run([LOW[0] + 0.002, *LOW[1:]])]}
    assert "fedem, less than 0.1 points better than fedavg" in verdict.verdict(runs)
    assert texts(runs, "spread")[0].endswith("is not known: less than 0.1 points")


def test_training_alone_may_be_best():
    runs = {"local": [run(CLEARLY_HIGHER)], "fedavg": [run(LOW)]}
    assert verdict.verdict(runs).endswith(
        "No method that learns together is clearly better than training alone."
    )


def test_what_is_not_known_is_not_claimed():
    runs = {"fedavg": [run(LOW, kept=False)], "fedem": [run(CLEARLY_HIGHER, kept=False)]}
    assert "whether that is chance is not known" in verdict.verdict(runs)
    (warning,) = texts(runs, "spread")
    assert (
        warning == "whether fedem and fedavg differ by more than chance is not known: 13.5 points"
    )


def test_one_method_is_no_comparison():
    assert verdict.verdict({"fedavg": [run(LOW)]}) is None
    assert verdict.warnings({"fedavg": [run(LOW)]}) == []
    nothing = {"fedgmm-unsupervised": [{"final": {"round": 1}}]}
    assert (verdict.verdict(nothing), verdict.warnings(nothing)) == (None, [])


# --- gains ----------------------------------------------------------------------------------------


def test_gains_count_the_clients_of_all_seeds():
    runs = {
        "local": [run([0.5, 0.5, 0.5]), run([0.4, 0.4, 0.4])],
        "fedavg": [run([0.7, 0.5, 0.2]), run([0.6, 0.6, 0.4])],
    }
    gain = verdict.gain(runs, "fedavg", "accuracy")
    assert gain == verdict.Gain(3, 1, 6, 2, pytest.approx(0.05), pytest.approx(-0.3))


def test_gains_are_not_known_without_a_baseline_or_without_clients():
    runs = {"fedavg": [run(LOW)], "fedem": [run(LOW, kept=False)]}
    assert verdict.gain(runs, "fedavg", "accuracy") is None
    runs["local"] = [run(LOW)]
    assert verdict.gain(runs, "fedem", "accuracy") is None
    assert verdict.gain(runs, "fedavg", "accuracy").better == 0


def test_a_baseline_may_have_any_name():
    runs = {"alone": [{**run(LOW), "algorithm": "local"}], "fedavg": [run(MIXED)]}
    assert verdict.baseline(runs, "accuracy") == "alone"


def test_the_best_of_several_local_rows_is_the_baseline():
    runs = {"local, lr = 0.1": [run(LOW)], "local, lr = 1": [run(CLEARLY_HIGHER)]}
    assert verdict.baseline(runs, "accuracy") == "local, lr = 1"


# --- what would mislead ---------------------------------------------------------------------------


def test_a_ceiling_below_a_method_is_none():
    runs = {"fedem": [run(CLEARLY_HIGHER)], "centralized": [run(LOW)]}
    (text,) = texts(runs, "ceiling")
    assert text.startswith("centralized is 13.5 points worse than fedem and no ceiling here")
    assert "ceiling" not in kinds({"fedem": [run(LOW)], "centralized": [run(CLEARLY_HIGHER)]})
    assert "ceiling" not in kinds({"fedem": [run([0.701])], "centralized": [run([0.700])]})


def test_pooled_data_win_no_comparison():
    runs = {"fedavg": [run(LOW)], "fedem": [run(MIXED)], "centralized": [run(CLEARLY_HIGHER)]}
    assert verdict.ranking(runs, "accuracy") == ["fedem", "fedavg"]


def test_methods_with_the_same_figures_are_named():
    runs = {"fedavg": [run(LOW)], "fedvc": [run(LOW)], "fedem": [run(MIXED)]}
    assert texts(runs, "same-figures") == [
        "fedavg, fedvc have the same figures at every client: they cannot be told apart here"
    ]
    said = {"kind": "identical-to-fedavg", "text": "in effect this is fedavg: weight is 0"}
    runs["fedvc"] = [run(LOW, warnings=[said])]
    assert "same-figures" not in kinds(runs)
    assert texts(runs, "identical-to-fedavg") == ["fedvc: in effect this is fedavg: weight is 0"]


@pytest.mark.parametrize(("criterion", "perfect"), [("accuracy", 1.0), ("rmse", 0.0)])
def test_methods_without_a_fault_are_not_said_to_be_alike(criterion, perfect):
    def runs(*scores):
        return {name: [run(scores, criterion=criterion)] for name in ("fedavg", "fedem")}

    assert "same-figures" not in kinds(runs(perfect, perfect))
    assert "same-figures" in kinds(runs(perfect, 0.5))


def test_warnings_of_several_seeds_and_methods_are_one_line():
    improving = {"kind": "still-improving", "text": "accuracy went from 50.0 to 60.0"}
    one = {"kind": "one-group", "text": "34 of 36 clients are on one model of 3"}
    runs = {
        "fedavg": [run(LOW, warnings=[improving])] * 2,
        "fedem": [run(MIXED, warnings=[improving, one]), run(LOW)],
        "ifca": [run(LOW), run(LOW)],
    }
    assert texts(runs, "still-improving") == [
        "fedavg, fedem: still improving at the last round: more rounds may change the order"
    ]
    assert texts(runs, "one-group") == [
        "fedem (1 of 2 seeds): 34 of 36 clients are on one model of 3"
    ]


def test_what_was_noticed_in_the_data_is_said_once_for_all_methods():
    noticed = [{"kind": "data", "text": text} for text in ("column 'id' ...", "column '' ...")]
    runs = {name: [run(LOW, warnings=noticed)] * 2 for name in ("fedavg", "local")}
    assert texts(runs, "data") == ["column 'id' ...", "column '' ..."]


def test_the_name_of_a_method_is_said_once():
    counted = {"kind": "rounds", "text": "fesem plays 7 rounds in stages"}
    runs = {"fesem": [run(LOW, warnings=[counted])]}
    assert texts(runs, "rounds") == ["fesem: plays 7 rounds in stages"]
