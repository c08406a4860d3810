"""Which samples and clients a run has never seen the like of."""

from ..document import Absent, Section, View
from ..runs import Runs
from .parts import slug

TITLE = "What is familiar and what is novel"


def novelty(runs: Runs) -> Section | Absent:
    shown = [run for run in runs.all if run.portrait.novelty]
    if not shown:
        problem = next((run.portrait.problem for run in runs.all if run.portrait.problem), None)
        reason = "no run has a method that models p(x), such as fedgmm"
        return {"title": TITLE, "reason": problem or reason}
    views: list[View] = [
        {
            "name": run.name,
            "charts": [
                {
                    "id": f"novelty-{number}-{slug(f'{run.row} {run.seed}')}",
                    "caption": caption,
                    "panel": panel,
                }
                for number, (panel, caption) in enumerate(
                    zip(run.portrait.novelty, _captions(len(run.portrait.novelty)), strict=True)
                )
            ],
        }
        for run in shown
    ]
    lead = (
        "A sample is novel for its features where log p(x) is low, and for its label where "
        "log p(y|x) is."
    )
    return {"id": "novelty", "title": TITLE, "lead": lead, "views": views}


def _captions(count: int) -> list[str]:
    of_points = "Each point is a test example, by how likely its features and its label are."
    of_scores = "The same by their sum, which is the score that `concordfl score` gives."
    return [of_points, of_scores][-count:]
