"""FedAvg by Flower's simulation, in a virtual environment that has Flower: see README.md."""

import sys
import time
from collections.abc import Iterable
from typing import Any

from flower_client import app as client_app
from flower_client import load
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

NUM_WORKERS = 2  # processes with a core each, as all who are compared have


class CheckedFedAvg(FedAvg):
    """Flower goes on without clients that failed: that would be fast, and no measurement."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        failed = [reply for reply in received if reply.has_error()]
        if failed or len(received) != self.min_train_nodes:
            reason = failed[0].error.reason if failed else "some sent nothing"
            raise RuntimeError(f"all {self.min_train_nodes} clients must reply: {reason}")
        return super().aggregate_train(server_round, received)


def make_server_app(workload_file: str, rounds: int, marks_file: str) -> ServerApp:
    app = ServerApp()

    def mark(round: int, _: ArrayRecord) -> None:
        """Called by the strategy after every round, and before the first as round 0."""
        if round > 0:
            with open(marks_file, "a") as marks:
                marks.write(f"{time.time()}\n")

    @app.main()
    def main(grid: Grid, _: Context) -> None:
        workload = load(workload_file)
        strategy = CheckedFedAvg(
            fraction_train=workload["cohort"] / workload["clients"],
            fraction_evaluate=0.0,
            min_train_nodes=workload["cohort"],
            min_evaluate_nodes=0,
            min_available_nodes=workload["clients"],
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(workload["module"].state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"workload": workload_file}),
            evaluate_fn=mark,
        )

    return app


def main(workload_file: str, rounds: int, marks_file: str) -> None:
    run_simulation(
        server_app=make_server_app(workload_file, rounds, marks_file),
        client_app=client_app,
        num_supernodes=load(workload_file)["clients"],
        backend_config={
            "init_args": {"num_cpus": NUM_WORKERS, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
