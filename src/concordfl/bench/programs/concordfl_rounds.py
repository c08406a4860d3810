"""FedAvg by concordfl's engine with two worker processes: see README.md."""

import sys
import time

import torch

from concordfl import assemble
from concordfl.bench.engine_rounds import engine_rounds
from concordfl.bench.workload import read_workload
from concordfl.inputs import load_config


def main(workload_file: str, rounds: int, marks_file: str) -> None:
    workload, clients = read_workload(workload_file)
    x = clients.x.mul(255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).numpy()
    pairs = zip(x, clients.y.numpy(), strict=True)
    examples = {f"client-{number:04d}": pair for number, pair in enumerate(pairs)}
    settings = load_config(workload.settings(rounds), clients=examples, data={"standardise": False})
    federation = assemble.make_federation(settings)
    with engine_rounds(settings, federation, "processes") as played:
        for _ in range(rounds):
            played.play()
            with open(marks_file, "a") as marks:
                marks.write(f"{time.time()}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
