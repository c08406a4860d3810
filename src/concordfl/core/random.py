"""Keyed randomness: every draw is a pure function of its key, so there is no random state to save.

A key is a path of parts, usually (seed, stage's own round, client name, purpose, epoch). Two keys
that differ in any part give independent draws; the same key gives the same draw in every process.

>>> Key(0, "shuffle").permutation(5).tolist() == Key(0, "shuffle").permutation(5).tolist()
True
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Part = str | int


@dataclass(frozen=True)
class Key:
    """A place in the tree of random streams."""

    parts: tuple[Part, ...]

    def __init__(self, *parts: Part) -> None:
        object.__setattr__(self, "parts", parts)

    def child(self, *parts: Part) -> "Key":
        return Key(*self.parts, *parts)

    @property
    def number(self) -> int:
        """128 bits that depend on every part (and on its type: 1 and "1" differ)."""
        return int.from_bytes(
            hashlib.blake2b(json.dumps(self.parts).encode(), digest_size=16).digest(), "little"
        )

    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.number))

    def permutation(self, size: int) -> Tensor:
        return torch.from_numpy(self.numpy().permutation(size))

    def normal(self, shape: tuple[int, ...], std: float = 1.0) -> Tensor:
        return torch.from_numpy(self.numpy().normal(0.0, std, shape))

    def laplace(self, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        return torch.from_numpy(self.numpy().laplace(0.0, scale, shape))

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(self.numpy().random(shape))

    @contextmanager
    def torch_global(self) -> Iterator[None]:
        """Inside, torch's global generator is seeded from this key (initialisers, drop-out);
        outside, it is untouched.
        """
        generators = [torch.default_generator, *_accelerator_generators()]
        # Generator by generator: torch.manual_seed formats a traceback for every kind of
        # accelerator that is not there.
        before = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(self.number % 2**63)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)


def _accelerator_generators() -> list[torch.Generator]:
    if torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return list(torch.cuda.default_generators)
    return [torch.mps._get_default_mps_generator()] if torch.backends.mps.is_available() else []
