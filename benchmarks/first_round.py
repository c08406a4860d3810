"""From command start to the end of the first round of `digits`, and where the time goes: `python
benchmarks/first_round.py`.

A fresh interpreter is started five times for each executor; medians are shown.
"""

import json
import statistics
import subprocess
import sys
import time

CHILD = """
import time
from contextlib import closing
marks = [("interpreter", time.time())]
def mark(name):
    marks.append((name, time.time()))
import torch
mark("import torch")
from concordfl import assemble, runner
from concordfl.cli import app
from concordfl.engine.choice import choose
from concordfl.engine.experiment import Experiment
from concordfl.engine.roster import Roster
mark("import the rest")
settings = runner.load_config("experiments/demo.toml", run={"executor": EXECUTOR})
mark("read and check the run file")
federation = assemble.make_federation(settings)
mark("load data, make clients")
model = assemble.make_model(settings, federation)
mark("build the model")
setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
choice = choose(setup, federation, settings.run)
mark("choose the executor")
with closing(choice.make(setup, federation, settings.run, None)) as executor:
    mark("start the executor")
    roster = Roster.from_federation(federation, setup)
    experiment = Experiment(setup, roster, settings.run, executor)
    progress = experiment.start()
    experiment.play(experiment.turns[0], progress)
    mark("first round")
import json
print(json.dumps(marks))
"""


def main() -> None:
    for executor in ("auto", "processes"):
        phases: dict[str, list[float]] = {}
        for _ in range(5):
            before = time.time()
            code = CHILD.replace("EXECUTOR", repr(executor))
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            start = before
            for name, at in json.loads(done.stdout):
                phases.setdefault(name, []).append(at - start)
                start = at
            phases.setdefault("total", []).append(start - before)
        print(f"executor = {executor}")
        for name, seconds in phases.items():
            print(f"  {name:28s} {statistics.median(seconds):6.2f} s")


if __name__ == "__main__":
    main()
