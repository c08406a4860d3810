"""Seconds per round of FedConcat's head stage against its encoder stage, without evaluation and
checkpoints.

    python benchmarks/head_stage.py

On Fashion-MNIST with two classes per client, two local epochs
(experiments/fedconcat/fmnist_c2.toml).
"""

from pathlib import Path

from concordfl import run
from concordfl.config import COMPARED, override, read_table

FILE = Path(__file__).parent.parent / "experiments" / "fedconcat" / "fmnist_c2.toml"
SHORT = ["algorithm.encoder_rounds=6", "algorithm.head_rounds=60", "run.evaluate_every=60"]


def main() -> None:
    for executor in ("serial", "processes"):
        table = override(read_table(FILE), [*SHORT, f"run.executor={executor}"])
        del table[COMPARED]
        stages = run(table).summary["seconds"]["stages"]
        encoders, head = (1000 * stages[name]["steps_per_round"] for name in ("encoders", "head"))
        print(
            f"{executor}: encoders {encoders:.0f} ms, head {head:.1f} ms a round: "
            f"{encoders / head:.1f} times less"
        )


if __name__ == "__main__":
    main()
