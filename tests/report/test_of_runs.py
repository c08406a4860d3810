"""Reports of real runs, beside what their folders hold and what other libraries compute."""

import base64
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

import concordfl as cf
from command import concordfl
from concordfl.algorithms import FedVC
from concordfl.deploy.finished import FinishedRun
from concordfl.deploy.scoring import score_examples
from concordfl.engine.records import RunFolder
from concordfl.report import make
from concordfl.report.runs import Portrait, Run, Runs
from concordfl.report.sections.clients_map import clients_map, in_plane
from concordfl.report.sections.gains import gains
from concordfl.study import reports
from report.test_page import draw_all, problems, texts, until, write

METHODS = [
    *("local", "fedavg", "ifca", "fedconceptem", "fedgmm", "fedconcat-id"),
    FedVC(similarity=100.0),  # so that concepts stay apart
]
TASK = {
    "data": {"name": "digits", "limit": 600},
    "scenario": {
        "clients": 8,
        "partition": {"kind": "dirichlet-by-class", "alpha": 1.0},
        "shifts": [{"kind": "label-map", "map": "reverse", "share": 0.5}],
    },
    "run": {"executor": "serial", "evaluate_every": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "compared"
    cf.compare(algorithms=METHODS, seeds=2, rounds=6, out=place, **TASK)
    return place


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory):
    place = tmp_path_factory.mktemp("diagnosis")
    cf.diagnose(TASK, out=place, max_groups=2)
    return place


@pytest.fixture(scope="module")
def runs(folder, diagnosis):
    return reports.of_folders([folder, diagnosis]).runs


@pytest.fixture(scope="module")
def document(runs):
    return make.document("digits", runs)


def path_of(folder, method, seed=0):
    (found,) = folder.glob(f"{method}-seed{seed}-*")
    return found


def rows_of(folder, method, seed=0):
    run = RunFolder.open(path_of(folder, method, seed))
    return run.read_client_rows(run.read_summary()["final"]["round"])


def accuracies(folder, method):
    """Of every participant, the mean over seeds."""
    each = [rows_of(folder, method, seed) for seed in (0, 1)]
    return {
        id: np.mean([rows[id]["accuracy"] for rows in each])
        for id, row in each[0].items()
        if not row["new"]
    }


def chart(document, id):
    return make.charts_of(document)[id]


def test_everything_is_there(document):
    assert [section["id"] for section in document["sections"]] == [
        *("comparison", "gains", "convergence", "diagnosis", "likeness", "shares"),
        *("map", "labels", "concepts", "novelty"),
    ]
    assert document["absent"] == []
    assert document["facts"] | {"rounds": ""} == {
        "clients": "8",
        "methods": "7",
        "seeds": "2",
        "rounds": "",
    }
    assert len(document["repeat"]) == 14
    json.dumps(document)  # plain values throughout


def test_boxes_are_quantiles_over_clients(folder, document):
    series = {one["name"]: one for one in chart(document, "comparison-clients")["panel"]["series"]}
    expected = np.quantile(list(accuracies(folder, "ifca").values()), [0.1, 0.25, 0.5, 0.75, 0.9])
    assert series["ifca"]["y"] == pytest.approx(100 * expected)


def test_gains_are_differences_at_each_client(folder, document):
    own, alone = accuracies(folder, "fedavg"), accuracies(folder, "local")
    (beside,) = chart(document, "gains-fedavg")["panel"]["series"]
    found = dict(zip(beside["names"], beside["y"], strict=True))
    assert found == pytest.approx({id: 100 * (own[id] - alone[id]) for id in own})
    assert beside["y"] == sorted(beside["y"])
    worse = sum(own[id] < alone[id] - 1e-12 for id in own)
    (gains,) = [section for section in document["sections"] if section["id"] == "gains"]
    assert f"{worse or 'none'} of 8 clients" in gains["lead"] or worse == 0


def test_curves_are_the_records(folder, document):
    records = [RunFolder.open(path_of(folder, "fedavg", seed)).read_records() for seed in (0, 1)]
    accuracy = np.array([[one["local"]["accuracy"] for one in run] for run in records])
    sent = np.array([[one["bytes"]["down"] + one["bytes"]["up"] for one in run] for run in records])
    for axis, x in (("rounds", [2, 4, 6]), ("bytes", sent.mean(0) / 1e6)):
        panel = chart(document, f"convergence-{axis}-participants")["panel"]
        (line,) = [one for one in panel["series"] if one["name"] == "fedavg"]
        assert line["x"] == pytest.approx(list(x))
        assert line["y"] == pytest.approx(list(100 * accuracy.mean(0)))
        assert line["spread"] == pytest.approx(list(100 * accuracy.std(0)))


def test_how_clients_differ_is_what_was_diagnosed(diagnosis, document):
    written = json.loads((diagnosis / "diagnosis.json").read_text())
    (section,) = [one for one in document["sections"] if one["id"] == "diagnosis"]
    for answer in written["questions"].values():
        assert answer["sentence"] in section["lead"]
    (view,) = section["views"]
    (chart,) = view["charts"]
    groups = {name: one["name"] for one in chart["panel"]["series"] for name in one["names"]}
    lines = written["clients"]
    assert groups == {id: f"concept group {line['group']}" for id, line in lines.items()}
    x = {
        name: value
        for one in chart["panel"]["series"]
        for name, value in zip(one["names"], one["x"], strict=True)
    }
    assert x == {id: line["label_distance"] for id, line in lines.items()}
    answers, advice = view["tables"]
    assert [row[0] for row in answers["rows"]] == ["labels", "concept", "features", "amount"]
    assert answers["rows"][1][4] == written["questions"]["concept"]["p"]
    assert answers["rows"][3][4] is None
    assert [row[1] for row in advice["rows"][:3]] == [
        one["method"] for one in written["recommendation"]["local"]["methods"]
    ]
    cards = document["clients"]
    for id, said in zip(cards["id"], cards["diagnosed"], strict=True):
        known = f"{lines[id]['label_distance']:.0%} of its labels" if id in lines else ""
        assert known in said
        assert bool(said) == (id in lines)


def test_a_run_that_auto_chose_says_so_without_a_further_folder(tmp_path):
    result = cf.run(TASK, algorithm="auto", rounds=2, out=tmp_path / "run")
    made = make.document("", reports.of_folders([tmp_path / "run"]).runs)
    (section,) = [one for one in made["sections"] if one["id"] == "diagnosis"]
    chosen = result.summary["auto"]
    assert f"auto chose {chosen['method']}: {chosen['because']}." in section["lead"]


def test_without_a_diagnosis_the_section_is_absent_and_two_are_refused(folder, diagnosis):
    made = make.document("", reports.of_folders([path_of(folder, "local")]).runs)
    assert [one["reason"] for one in made["absent"] if one["title"] == "How clients differ"] == [
        "no run was chosen by auto, and no folder with a diagnosis.json was given"
    ]
    assert set(made["clients"]["diagnosed"]) == {""}
    with pytest.raises(cf.SettingError, match="one diagnosis beside its runs, got "):
        reports.of_folders([folder, diagnosis, diagnosis])


def test_who_is_like_whom_is_what_the_method_found(folder, document):
    rows = {id: row for id, row in rows_of(folder, "fedconceptem").items() if not row["new"]}
    found = chart(document, "clients-by-model-fedconceptem-0")
    lines = {one["name"]: one["y"] for one in found["panel"]["series"]}
    assert lines == {id: pytest.approx(list(row["weights"].values())) for id, row in rows.items()}
    truth, groups = ([*strip["values"]] for strip in found["strips"])
    assert groups == [row["group"] for row in rows.values()]
    recorded = RunFolder.open(path_of(folder, "fedconceptem")).read_summary()["clusters"]["ari"]
    assert adjusted_rand_score(truth, groups) == pytest.approx(recorded)
    for order in found["orders"].values():
        assert sorted(order) == list(range(8))


def test_groups_by_model_are_shares_of_examples(folder, runs, document):
    run = next(run for run in runs.all if run.name == "ifca, seed 0")
    panel = chart(document, "groups-by-model-ifca-0")["panel"]
    for line in panel["series"]:
        members = [c for c in run.clients if c["groups"]["concept"] == line["name"]]
        members = [c for c in members if not c["held_out"]]
        total = sum(c["train"] for c in members)
        for model, share in zip(line["x"], line["y"], strict=True):
            own = [c["train"] for c in members if int(run.rows[c["id"]]["group"]) == int(model)]
            assert share == pytest.approx(sum(own) / total)


def test_shares_over_rounds_add_up_to_one(document):
    for method in ("fedconceptem", "ifca", "fedvc"):
        series = chart(document, f"shares-{method}-0")["panel"]["series"]
        assert np.sum([[y or 0 for y in one["y"]] for one in series], 0) == pytest.approx(
            1.0, abs=1e-5
        )


def test_the_map_is_made_of_principal_components():
    features = np.random.default_rng(0).dirichlet(np.ones(5), size=30)
    ours, theirs = np.array(in_plane(features)), PCA(2).fit_transform(features)
    signs = np.sign((ours * theirs).sum(0))
    assert ours == pytest.approx(theirs * signs)
    assert np.array(in_plane(np.ones((4, 1)))) == pytest.approx(np.zeros((4, 2)))


def test_a_picture_of_very_many_clients_shows_some_of_them():
    ids = [f"c{number}" for number in range(5000)]
    facts = [
        {"id": id, "held_out": False, "labels": [number, 5000 - number], "groups": {}}
        for number, id in enumerate(ids)
    ]
    rows = {id: {"new": False, "accuracy": number / 5000} for number, id in enumerate(ids)}
    runs = Runs(
        [
            Run(row, 0, {"final": {"local_accuracy": 0.5}, "algorithm": row}, clients=facts,
                rows=rows, classes=("cat", "dog"))
            for row in ("local", "fedavg")
        ]
    )  # fmt: skip
    (drawn,) = clients_map(runs)["views"][0]["charts"]
    assert len(drawn["panel"]["series"][0]["x"]) == 1667
    assert drawn["caption"].endswith("1667 of 5000 clients are shown.")
    (curve,) = gains(runs)["views"][0]["charts"]
    assert curve["panel"]["kind"] == "lines"
    assert len(curve["panel"]["series"][0]["x"]) == 5000


def test_beliefs_about_labels_lie_beside_the_truth(folder, document):
    rows = rows_of(folder, "fedconcat-id")
    facts = RunFolder.open(path_of(folder, "fedconcat-id")).read_federation()["clients"]
    counts = {one["id"]: np.array(one["labels"]) for one in facts}
    far = {
        id: np.abs(np.array(row["label_shares"]) - counts[id] / counts[id].sum()).sum()
        for id, row in rows.items()
        if not row["new"]
    }
    worst = chart(document, "labels-worst-fedconcat-id-0")
    assert worst["panel"]["title"] == max(far, key=far.get)
    assert f"{max(far.values()):.2f} of 2" in worst["caption"]
    true, believed = worst["panel"]["series"]
    assert np.abs(np.subtract(true["y"], believed["y"])).sum() == pytest.approx(max(far.values()))


def test_typical_samples_are_the_images_themselves(folder, document):
    (section,) = [one for one in document["sections"] if one["id"] == "concepts"]
    gallery = section["views"][0]["galleries"][0]
    finished = FinishedRun.open(path_of(folder, "fedvc"))
    rows = {id: row for id, row in rows_of(folder, "fedvc").items() if not row["new"]}
    found = [
        (value, id, sample)
        for id, row in rows.items()
        for value, sample in zip(
            row["typical"]["expressed"][0], row["typical"]["samples"][0], strict=True
        )
    ]
    _, id, sample = max(found)
    train = finished.federation().splits(id).train
    shown = np.array(Image.open(io.BytesIO(base64.b64decode(gallery["images"][0]["png"]))))
    assert (shown == train.x[sample, :, :, 0].numpy()).all()
    assert gallery["images"][0]["caption"].startswith(f"{int(train.y[sample])}, {id}: ")


def test_concepts_that_have_become_one_are_not_drawn(runs):
    run = next(run for run in runs.all if run.method == "fedvc")
    warned = {**run.figures, "warnings": [{"kind": "identical-to-fedavg", "text": "..."}]}
    absent = make.document("", Runs([replace(run, figures=warned)]))["absent"]
    (reason,) = [one["reason"] for one in absent if one["title"].startswith("Virtual concepts")]
    assert "near 0 they have become one" in reason


def test_novelty_shows_the_scores_that_score_gives(folder, document):
    points, scores = (chart(document, f"novelty-{n}-fedgmm-0")["panel"] for n in (0, 1))
    finished = FinishedRun.open(path_of(folder, "fedgmm"))
    federation = finished.federation()
    first = federation.splits(federation.participants[0]).test
    expected = score_examples(finished, first, labelled=True).columns
    participants = points["series"][0]
    assert participants["x"][: len(first)] == pytest.approx(expected["log_p_x"].tolist())
    assert participants["y"][: len(first)] == pytest.approx(expected["log_p_y_given_x"].tolist())
    for kind in scores["series"]:
        assert sum(kind["y"]) == pytest.approx(1.0)


def test_cards_hold_what_is_known_of_a_client(folder, document):
    clients = document["clients"]
    place = clients["id"].index("client-3")
    (own,) = [run for run in clients["runs"] if (run["row"], run["seed"]) == ("fedavg", 1)]
    assert own["scores"][place] == rows_of(folder, "fedavg", 1)["client-3"]["accuracy"]
    mixed = next(run for run in clients["runs"] if run["row"] == "fedconceptem")
    weights = rows_of(folder, "fedconceptem")["client-3"]["weights"]
    assert mixed["weights"]["values"][place] == pytest.approx(list(weights.values()))
    assert mixed["sure"][place] == pytest.approx(max(weights.values()))
    assert sum(clients["label_shares"][place]) == pytest.approx(1.0)
    assert "fedgmm, seed 0" in clients["verdict"][place]
    assert (clients["alone"], clients["averaged"]) == ("local", "fedavg")


def test_the_rarest_client_is_set_apart_and_novel():
    def client(id, labels, **facts):
        sizes = {"train": sum(labels), "validation": 0, "test": 5}
        return {"id": id, "held_out": False, "labels": labels, "groups": {}, **sizes, **facts}

    facts = [client(f"c{number}", [10, 10]) for number in range(29)] + [client("odd", [0, 60])]
    rows = {
        one["id"]: {"new": False, "accuracy": 0.5, "log_likelihood": -10.0 + number / 100}
        for number, one in enumerate(facts)
    }
    rows["odd"]["log_likelihood"] = -99.0
    figures = {
        "final": {"local_accuracy": 0.5},
        "clients": 30,
        "rounds": 1,
        "parameters": 2,
        "seconds": {"total": 1.0},
        "bytes": {"down": 1, "up": 1},
        "algorithm": "fedgmm",
    }
    run = Run("fedgmm", 0, figures, clients=facts, rows=rows, classes=("cat", "dog"))
    cards = make.document("", Runs([run]))["clients"]
    assert cards["apart"][0] == "Its data are like those of others."
    assert "60 training examples, where the median is 20" in cards["apart"][-1]
    assert "100% dog, where all have 52%" in cards["apart"][-1]
    assert cards["verdict"][-1].startswith("Novel to fedgmm, seed 0")
    assert cards["verdict"][5].startswith("Familiar")


def test_kept_results_are_shown_by_their_figures(runs):
    bare = Runs([Run(run.row, run.seed, run.figures) for run in runs.all])
    document = make.document("kept", bare)
    assert document["clients"] is None
    assert {section["id"] for section in document["sections"]} == {
        *("comparison", "gains", "convergence")
    }
    full = chart(make.document("", runs), "gains-ifca")["panel"]["series"][0]["y"]
    kept = chart(document, "gains-ifca")["panel"]["series"][0]["y"]
    assert kept == pytest.approx(full, abs=0.01)  # kept figures are rounded


def test_data_that_are_gone_are_named(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(path_of(folder, "fedgmm"), copy)
    config = (copy / "config.toml").read_text().replace('name = "digits"', 'name = "cifar10"')
    (copy / "config.toml").write_text(config)
    (run,) = reports.of_folders([copy]).runs.all
    assert isinstance(run.portrait, Portrait)
    assert run.portrait.problem
    absent = make.document("", Runs([run]))["absent"]
    assert run.portrait.problem in [one["reason"] for one in absent]


def test_a_browser_shows_all_of_it(document, browser, tmp_path):
    address = write(tmp_path, document)
    browser.get(address)
    titles = [section["title"] for section in document["sections"]]
    assert texts(browser, "main > section > h2") == [*titles, "Clients", "Details"]
    assert texts(browser, "h1") == [document["headline"]]
    draw_all(browser)
    browser.get(f"{address}#client=client-3")
    assert "client-3" in until(browser, "document.querySelector('dialog[open]')?.textContent")
    assert problems(browser) == []


# --- commands -------------------------------------------------------------------------------------


def test_the_command_writes_a_page(folder, tmp_path):
    done = concordfl(tmp_path, "report", folder, "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "The report is page.html"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_settings_that_differ_name_the_rows(tmp_path):
    for number, lr in enumerate((0.1, 0.2)):
        cf.run(algorithm="fedavg", rounds=2, lr=lr, out=tmp_path / f"run-{number}", **TASK)
    runs = reports.of_folders([tmp_path]).runs
    assert list(runs.by_row) == ["fedavg, lr = 0.1", "fedavg, lr = 0.2"]


def test_a_run_that_is_not_finished_is_left_out(folder, tmp_path):
    cf.run(algorithm="fedavg", rounds=4, until=2, out=tmp_path / "half", **TASK)
    shutil.copytree(path_of(folder, "local"), tmp_path / "whole")
    done = concordfl(tmp_path, "report", ".", "-o", "page.html")
    assert f"Left out, as it is not finished: {'half'}" in done.stdout
    refused = concordfl(tmp_path, "report", "half")
    assert refused.stderr == "concordfl: a report needs a finished run, got none in half\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nowhere"], "a report is of folders of runs, got nowhere, which holds none"),
        (["report", "run", "-o", "x.pdf"], "a report must be an .html file, got x.pdf"),
        (
            ["report", "run", "-o", "no/x.html"],
            "a report must be a file in a folder that exists, got no/x.html",
        ),
        (
            ["report", "run", "again"],
            "runs of a report must differ, got run and again, both local, seed 0",
        ),
        (["plot", "run", "gains"], "a figure must be given with --out, got only one of them"),
        (
            ["plot", "run", "comparison-client", "-o", "x.csv"],
            "a figure must be one of the report's, got 'comparison-client': did you mean "
            "'comparison-clients'?",
        ),
        (
            ["plot", "run", "labels", "-o", "x.doc"],
            "a picture must be a file of kind svg, png, pdf, got x.doc",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(folder, tmp_path, arguments, message):
    for name in ("run", "again"):
        shutil.copytree(path_of(folder, "local"), tmp_path / name)
    done = concordfl(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (2, f"concordfl: {message}\n")


def test_a_picture_for_a_paper(folder, tmp_path):
    names = concordfl(tmp_path, "plot", folder).stdout
    assert "clients-by-model-fedconceptem-0: A line for each client" in names
    done = concordfl(tmp_path, "plot", folder, "clients-by-model-fedconceptem-0", "-o", "x.csv")
    assert done.stdout == "Written to x.csv\n"
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "panel,series,x,y,spread"
    assert len(lines) == 1 + 8 * 3
    assert concordfl(tmp_path, "plot", folder, "comparison-clients", "-o", "x.pdf").returncode == 0
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


def test_from_python_without_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    clients = {}
    for name in ("<b>north</b>", "south"):
        x = rng.normal(size=(30, 3))
        clients[name] = (x, np.where(x[:, 0] > 0, "ill", "well"))
    quick = {"rounds": 2, "run": {"executor": "serial", "evaluate_every": 1}, "model": "linear"}
    found = cf.compare(clients=clients, algorithms=["local", "fedem"], **quick)
    assert found.report(tmp_path / "both.html").is_file()
    assert found["fedem", 0].report(tmp_path / "one.html").is_file()
    with pytest.raises(cf.SettingError, match="must be an .html file, got one.pdf"):
        found.report("one.pdf")
