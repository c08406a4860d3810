"""A report of invented runs that has everything a document can have."""

import base64
import io

import numpy as np
from PIL import Image

from concordfl.report.pictures import BOX_LEVELS

METHODS = ("local", "fedavg", "fedavg-ft", "ifca", "fedem", "fedconceptem")
CLASSES = tuple(f"digit {label}" for label in range(10))
GROUPS = ("upright", "turned by 90°", "turned by 180°", "labels swapped")
HOSTILE = (
    "<img src=x onerror=\"window.injected='image'\">",
    "</script><script>window.injected='script'</script>",
    "<b>bold</b> &lt;i&gt; &amp; &#60;",
    '<a href="javascript:window.injected=1">link</a>%{x}<br>',
    "--><!--<script>",
    "\ud800 lone, \x00 and \x07 control, \u2028 separator",
)


def document(clients=24, seeds=2, methods=METHODS, classes=CLASSES, groups=GROUPS, ids=None):
    """Rounded to nothing in particular: the page shows what is in here."""
    random = np.random.default_rng(7)
    ids = ids or [f"client {number}" for number in range(clients)]
    group = np.arange(clients) % len(groups)
    shares = random.dirichlet(np.full(len(classes), 0.7), clients)
    models = [f"model {number}" for number in range(len(groups))]
    weights = random.dirichlet(np.full(len(groups), 0.15), clients) * 0.3
    weights[np.arange(clients), group] += 0.7
    level = random.beta(14, 4, clients)
    runs = [
        _run(random, row, rank, seed, level, weights, models)
        for rank, row in enumerate(methods)
        for seed in range(seeds)
    ]
    return {
        "title": "Digits, some of them turned: six methods compared",
        "headline": f"{methods[-1]} finds the four groups, and three clients in four gain by it",
        "sentences": [
            f"{methods[-1]} reaches 91.4% on the clients' own test data, 6.2 points more than "
            f"{methods[1]}.",
            "The difference is more than four times the spread over seeds.",
            f"Six of {clients} clients would have done better alone: they have the most data.",
        ],
        "facts": {
            "clients": f"{clients:,}",
            "methods": str(len(methods)),
            "seeds": str(seeds),
            "rounds": "40",
            "sent per method": "18.3 MB",
            "best": methods[-1],
        },
        "warnings": [
            f"{methods[3]} put all clients into one group in seed 1.",
            "Two seeds are few: the spread over them is itself uncertain.",
        ],
        "sections": _sections(
            random, methods, classes, groups, ids, group, weights, models, shares
        ),
        "clients": {
            "id": ids,
            "held_out": [number % 12 == 11 for number in range(clients)],
            "train": random.integers(40, 900, clients).tolist(),
            "validation": random.integers(10, 90, clients).tolist(),
            "test": random.integers(20, 200, clients).tolist(),
            "true_groups": {"concept": [groups[one] for one in group]},
            "classes": list(classes),
            "label_shares": shares.tolist(),
            "apart": [
                f"Has {share.max():.0%} {classes[share.argmax()]}, more than most."
                for share in shares
            ],
            "verdict": [
                "Familiar: its examples are as likely as everybody's." if number % 6 else ""
                for number in range(clients)
            ],
            "diagnosed": [
                f"Diagnosed: {number}% of its labels away from those of all." if number % 5 else ""
                for number in range(clients)
            ],
            "runs": runs,
            "criterion": "accuracy",
            "is_share": True,
            "higher_is_better": True,
            "alone": methods[0],
            "averaged": methods[1],
        },
        "absent": [
            {"title": "Drift", "reason": "The data of these runs do not change over the rounds."}
        ],
        "repeat": [
            {
                "name": f"{row}, seed {seed}",
                "command": f"concordfl run {row}.toml --seed {seed}",
                "config": f'[algorithm]\nname = "{row}"\n\n[run]\nrounds = 40\nseed = {seed}\n',
                "versions": {"concordfl": "0.1.0", "torch": "2.13.0", "Python": "3.12.3"},
            }
            for row in methods
            for seed in range(seeds)
        ],
        "made": "Made by concordfl 0.1.0 on 1 July 2026.",
    }


def _run(random, row, rank, seed, level, weights, models):
    clients = len(level)
    mixes = rank >= 3
    own = np.clip(level + 0.02 * (rank - 2) + random.normal(0, 0.05, clients), 0, 1)
    scores = own.tolist()
    if clients > 5 and rank == 1:
        scores[5] = None
    return {
        "row": row,
        "seed": seed,
        "scores": scores,
        "found": [models[one] for one in weights.argmax(1)] if mixes else [None] * clients,
        "sure": weights.max(1).tolist() if mixes else [None] * clients,
        "weights": {"models": models, "values": weights.tolist()} if mixes else None,
        "novelty": (-20 - 30 * random.random(clients)).tolist() if rank == 5 else [None] * clients,
    }


def chart(id, kind, title, x_label, y_label, series, caption="One sees what is drawn.", **others):
    panel = {"kind": kind, "title": title, "x_label": x_label, "y_label": y_label, "series": series}
    return {"id": id, "caption": caption, "panel": panel, **others}


def _sections(random, methods, classes, groups, ids, group, weights, models, shares):
    clients = len(ids)
    return (
        [
            {
                "id": "comparison",
                "title": "Who wins",
                "lead": "Methods that find groups are ahead, and their worst tenth gains the most.",
                "views": [
                    {
                        "name": "",
                        "charts": [_boxes(random, methods)],
                        "tables": [_table(random, methods)],
                    }
                ],
            },
            {
                "id": "convergence",
                "title": "How fast",
                "lead": "By rounds they are close; by bytes, those that send one model lead.",
                "views": [_curves(random, methods, over) for over in ("rounds", "MB", "seconds")],
            },
            {
                "id": "alike",
                "title": "Who is like whom",
                "lead": "Nearly every client uses the model of its own group.",
                "views": [
                    {
                        "name": f"{row}, seed 0",
                        "charts": [
                            _clients_by_models(ids, groups, group, weights, models),
                            _labels_by_models(random, classes, models),
                        ],
                    }
                    for row in methods[3:]
                ],
            },
            {
                "id": "shares",
                "title": "Which models are used",
                "lead": "A model without users is removed in round 9.",
                "views": [{"name": "", "charts": [_shares_over_rounds(random, models)]}],
            },
            {
                "id": "map",
                "title": "A map of clients",
                "lead": "Clients that are near each other use their models alike.",
                "views": [{"name": "", "charts": [_map(random, ids, groups, group)]}],
            },
            {
                "id": "concepts",
                "title": "Concepts",
                "lead": "Each concept is shown by the samples that are most typical of it.",
                "views": [
                    {
                        "name": "",
                        "charts": [],
                        "galleries": [_gallery(random, name) for name in models],
                    }
                ],
            },
            {
                "id": "novelty",
                "title": "What is new",
                "lead": "Turned digits are less likely than upright ones.",
                "views": [{"name": "", "charts": [_novelty(random), *_likelihoods(random)]}],
            },
            {
                "id": "labels",
                "title": "Labels, true and inferred",
                "lead": "What the server infers of the labels is close to what clients have.",
                "views": [
                    {
                        "name": "",
                        "charts": [
                            _labels(f"labels-{kind}", f"{kind} labels", shares, classes, ids[:20])
                            for kind in ("true", "inferred")
                        ],
                    }
                ],
            },
            {
                "id": "gain",
                "title": "Who gains, who loses",
                "lead": "Three clients in four gain against training alone; six are harmed.",
                "views": [
                    {"name": f"against {row}", "charts": [_gains(random, row, ids)]}
                    for row in methods[:2]
                ],
            },
        ]
        if clients
        else []
    )


def _boxes(random, methods):
    series = []
    for rank, row in enumerate(methods):
        values = np.clip(random.normal(70 + 3 * rank, 9, 200), 0, 100)
        quantiles = np.quantile(values, BOX_LEVELS)
        series.append({"name": row, "x": list(BOX_LEVELS), "y": quantiles.tolist()})
    caption = "The middle half of the clients, and whiskers from the worst to the best tenth."
    title = "Accuracy over clients"
    return chart("comparison-boxes", "boxes", title, "", "accuracy, %", series, caption)


def _table(random, methods):
    columns = [
        {"name": "method", "kind": "text"},
        {"name": "accuracy, %", "kind": "number", "digits": 1, "best": "highest"},
        {"name": "± over seeds", "kind": "number", "digits": 1},
        {"name": "worst tenth, %", "kind": "number", "digits": 1, "best": "highest"},
        {"name": "MB sent", "kind": "number", "digits": 1, "best": "lowest"},
        {"name": "seconds", "kind": "number", "digits": 0},
    ]
    rows = [
        [row, *random.uniform((75, 0.2, 40, 2, 9), (92, 2, 70, 40, 99)).tolist()] for row in methods
    ]
    rows[0][4] = None
    return {"title": "All figures", "columns": columns, "rows": rows}


def _curves(random, methods, over):
    rounds = np.arange(1, 41)
    series = []
    for rank, row in enumerate(methods):
        curve = 60 + (20 + 2 * rank) * (1 - np.exp(-rounds / (5 + rank)))
        step = {"rounds": 1, "MB": 0.2 * (rank + 1), "seconds": 0.7 + 0.1 * rank}[over]
        series.append(
            {
                "name": row,
                "x": (rounds * step).tolist(),
                "y": (curve + random.normal(0, 0.5, 40)).tolist(),
                "spread": (1 + 2 * random.random(40)).tolist(),
            }
        )
    title = f"Accuracy against {over}"
    return {
        "name": over,
        "charts": [chart(f"convergence-{over}", "lines", title, over, "accuracy, %", series)],
    }


def _clients_by_models(ids, groups, group, weights, models):
    series = [
        {"name": id, "x": models, "y": own.tolist()} for id, own in zip(ids, weights, strict=True)
    ]
    found = weights.argmax(1)
    return chart(
        "clients-by-models",
        "heatmap",
        "Weight of each model at each client",
        "model",
        "client",
        series,
        orders={
            "by group found": sorted(range(len(ids)), key=lambda one: (found[one], one)),
            "by true group": sorted(range(len(ids)), key=lambda one: (group[one], one)),
            "by name": list(range(len(ids))),
        },
        strips=[
            {"name": "true group", "values": [groups[one] for one in group]},
            {"name": "group found", "values": [*(models[one] for one in found[:-1]), None]},
        ],
    )


def _labels_by_models(random, classes, models):
    values = random.dirichlet(np.ones(len(models)), len(classes))
    series = [
        {"name": name, "x": models, "y": own.tolist()}
        for name, own in zip(classes, values, strict=True)
    ]
    series[1]["y"][0] = None
    title = "Weight of each model on each label"
    return chart("labels-by-models", "heatmap", title, "model", "label", series)


def _shares_over_rounds(random, models):
    shares = random.dirichlet(np.full(len(models), 6), 40)
    shares[9:, 0] = 0
    shares /= shares.sum(1, keepdims=True)
    series = [
        {"name": name, "x": list(range(1, 41)), "y": own.tolist()}
        for name, own in zip(models, shares.T, strict=True)
    ]
    title = "Share of clients that use a model most"
    return chart("shares", "stacked", title, "round", "share of clients", series)


def _map(random, ids, groups, group):
    at = random.normal(0, 0.4, (len(ids), 2)) + 2 * np.stack([group % 2, group // 2], 1)
    series = []
    for number, name in enumerate(groups):
        own = np.flatnonzero(group == number)
        series.append(
            {
                "name": name,
                "x": at[own, 0].tolist(),
                "y": at[own, 1].tolist(),
                "names": [ids[one] for one in own],
            }
        )
    title = "Clients by their mixture weights"
    return chart("map", "points", title, "first direction", "second direction", series)


def _gallery(random, name):
    images = []
    for number in range(6):
        pixels = random.integers(0, 90, (12, 12), dtype=np.uint8)
        pixels[2:10, 4 : 5 + number % 3] = 230
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        png = base64.b64encode(file.getvalue()).decode()
        images.append({"png": png, "caption": f"digit {number}"})
    return {"title": name, "images": images}


def _novelty(random):
    series = [
        {
            "name": name,
            "x": random.normal(at, 3, 80).tolist(),
            "y": random.normal(at / 10, 0.5, 80).tolist(),
        }
        for name, at in (("known", -20), ("new", -34))
    ]
    title = "How likely samples are"
    return chart("novelty", "points", title, "log p(x)", "log p(y|x)", series)


def _likelihoods(random):
    for figure in ("log p(x)", "log p(y|x)"):
        edges = np.linspace(-50, -10, 21)
        series = [
            {
                "name": name,
                "x": edges.tolist(),
                "y": np.histogram(random.normal(at, 4, 300), edges)[0].tolist(),
            }
            for name, at in (("known", -22), ("new", -34))
        ]
        id = f"likelihoods-{'x' if figure == 'log p(x)' else 'y'}"
        yield chart(id, "histogram", figure, figure, "samples", series)


def _labels(id, title, shares, classes, ids):
    series = [
        {"name": name, "x": ids, "y": own[: len(ids)].tolist()}
        for name, own in zip(classes, shares.T, strict=True)
    ]
    return chart(id, "stacked", title, "client", "share of examples", series)


def _gains(random, row, ids):
    gains = np.sort(random.normal(3, 5, len(ids)))[::-1]
    series = [{"name": "gain", "x": ids, "y": gains.tolist()}]
    title = f"Gain against {row}, in points"
    return chart(f"gain-{row}", "bars", title, "client", "points", series)
