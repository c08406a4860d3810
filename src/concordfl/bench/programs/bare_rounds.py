"""FedAvg by two bare PyTorch loops in two processes: see README.md."""

import sys
import time

import torch

from concordfl.bench.bare import BareLoops
from concordfl.bench.workload import read_workload


def main(workload_file: str, rounds: int, marks_file: str) -> None:
    torch.set_num_threads(1)
    workload, clients = read_workload(workload_file)
    loops = BareLoops(workload, clients)
    try:
        for _ in range(rounds):
            loops.play()
            with open(marks_file, "a") as marks:
                marks.write(f"{time.time()}\n")
    finally:
        loops.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
