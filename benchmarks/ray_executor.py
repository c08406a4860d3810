"""Ray's workers beside worker processes: `python benchmarks/ray_executor.py`.

The first workload of `concordfl bench speed`: FedAvg, whose clients keep nothing, and Ditto, whose
clients keep a whole network each. For each method the executors, two workers each, take turns in
one run; what counts are ratios, as machines are noisy.
"""

import argparse
import json
from contextlib import ExitStack

from concordfl import assemble
from concordfl.bench.engine_rounds import engine_rounds
from concordfl.bench.turns import NUM_WARM_UPS, Timing, ratio, take_turns
from concordfl.bench.workload import MANY_IMAGES, make_config
from concordfl.engine.threads import one_thread

EXECUTORS = ("processes", "ray")
METHODS = ("fedavg", "ditto")


def measure(method: str, rounds: int) -> dict[str, Timing]:
    settings = make_config(MANY_IMAGES, rounds + NUM_WARM_UPS, method)
    federation = assemble.make_federation(settings)
    with one_thread(), ExitStack() as stack:
        plays = {
            name: stack.enter_context(engine_rounds(settings, federation, name)).play
            for name in EXECUTORS
        }
        return take_turns(plays, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds of each")
    arguments = parser.parse_args()
    ratios = {}
    for method in METHODS:
        timings = measure(method, arguments.rounds)
        for name, timing in timings.items():
            figures = f"{1000 * timing.median:7.1f} ms a round (fastest {1000 * timing.low:.1f})"
            print(f"{method:8s} {name:10s} {figures}")
        processes, ray = (timings[name].seconds for name in EXECUTORS)
        ratios[f"{method}: ray / processes"] = round(ratio(processes, ray), 3)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
