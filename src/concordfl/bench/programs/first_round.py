"""From the start of the process to the end of a run's first round, and where the time goes: called
as `python first_round.py RUN_FILE EXECUTOR MARKS`; a line of MARKS is a time and what was done by
then.
"""

import sys
import time

MARKS: list[tuple[float, str]] = []


def mark(name: str) -> None:
    MARKS.append((time.time(), name))


def main(run_file: str, executor: str, marks_file: str) -> None:
    mark("interpreter")
    import torch  # noqa: F401

    mark("import torch")
    from concordfl import assemble, runner  # noqa: F401 - what the command imports
    from concordfl.cli import run  # noqa: F401
    from concordfl.engine.choice import choose
    from concordfl.engine.experiment import Experiment
    from concordfl.engine.roster import Roster
    from concordfl.inputs import load_config

    mark("import the rest")
    settings = load_config(run_file, run={"executor": executor})
    mark("read and check the run file")
    federation = assemble.make_federation(settings)
    mark("load data, make clients")
    model = assemble.make_model(settings, federation)
    mark("build the model")
    setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
    choice = choose(setup, federation, settings.run)
    mark("choose the executor")
    made = choice.make(setup, federation, settings.run, None)
    try:
        mark("start the executor")
        experiment = Experiment(
            setup, Roster.from_federation(federation, setup), settings.run, made
        )
        experiment.play(experiment.turns[0], experiment.start())
        mark("first round")
    finally:
        made.close()
    with open(marks_file, "w") as file:
        file.writelines(f"{at} {name}\n" for at, name in MARKS)


if __name__ == "__main__":
    main(*sys.argv[1:])
