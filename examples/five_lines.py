"""FedAvg and FedProx on digits at clients with few labels each: `python examples/five_lines.py`."""

import concordfl as cf

for name in ("fedavg", "fedprox"):
    result = cf.run(
        data={"name": "digits"},
        scenario={"clients": 20, "partition": {"kind": "lda", "alpha": 1.0}},
        algorithm={"name": name},
        run={"rounds": 30},
    )
    print(f"{name}: {100 * result.accuracy:.1f}% on the clients' own test examples")
