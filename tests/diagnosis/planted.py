"""Clients that differ in planted ways: three classes by the angle of the first two columns."""

import numpy as np


def planted(clients=8, examples=120, labels=False, features=False, concept=False, seed=0):
    """Examples by client; every other client has another concept, and every client its own place in
    the last columns, which say nothing of the class.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(clients):
        x = rng.normal(size=(20 * examples, 6))
        angle = np.arctan2(x[:, 1], x[:, 0]) + rng.normal(0, 0.2, len(x))
        angle += (number % 2) * concept * np.deg2rad(120)
        y = (angle % (2 * np.pi) // (2 * np.pi / 3)).astype(int).clip(0, 2)
        shares = rng.dirichlet(np.full(3, 0.7)) if labels else np.full(3, 1 / 3)
        counts = rng.multinomial(examples, shares)
        rows = np.concatenate([np.flatnonzero(y == label)[: counts[label]] for label in range(3)])
        x = x[rows]
        if features:
            x[:, 3:] += rng.normal(size=3)
        found[f"c{number}"] = (x.astype(np.float32), y[rows])
    return found
