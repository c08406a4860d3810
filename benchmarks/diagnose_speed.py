"""Seconds of a diagnosis and bytes of a client: 40 clients of 300 images, 1,000 clients of 50.

    python benchmarks/diagnose_speed.py

Run it alone on the machine. The time of the processor is of this process alone: with worker
processes it tells nothing.
"""

import time

import concordfl as cf

CASES = {
    "40 x 300 images": {"clients": 200, "split": [1.0, 0.0, 0.0], "hold_out": 0.8},
    "1,000 x 50 images": {"clients": 1200, "split": [1.0, 0.0, 0.0], "hold_out": 1 / 6},
}


def main() -> None:
    for name, scenario in CASES.items():
        for executor in ("serial", "processes"):
            began, cpu = time.monotonic(), time.process_time()
            found = cf.diagnose(
                data={"name": "mnist"}, scenario=scenario, run={"executor": executor}
            )
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            up, down = (found.content["traffic"][f"{way}_per_client"] for way in ("up", "down"))
            print(
                f"{name}, {executor}: {seconds:.1f} s ({cpu:.1f} s of the processor); a client "
                f"sends {up / 1e6:.2f} MB and receives {down / 1e6:.2f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
