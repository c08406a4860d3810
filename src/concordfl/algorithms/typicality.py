"""How typical an input is, by how far its features lie from those of training examples.

A density of the features themselves would not tell: an input may also lie nearer to the means than
training examples do, as small digits do, and would be called likelier than any of them. So it is
the distance whose density is modelled (docs/concord.md, "How typical inputs are").

    measure_features   sum   features under the newest encoder by head and class
    measure_distances  sum   how many distances, their logs' sum and sum of squares
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Algorithm,
    Client,
    Cohort,
    Examples,
    NoReplies,
    Total,
    Tree,
    client_step,
    tree,
)
from ..toolbox import class_heads
from ..toolbox.absent import with_absent
from ..toolbox.class_heads import ClassSums

NEAREST = 1e-9  # distances and their variance are at least that


@tree.register
class Inputs(NamedTuple):
    """What training examples are like, as the newest encoder sees them."""

    sums: ClassSums  # (K, …) of features by head and class
    distances: Tensor  # (3,) Σ 1, Σ t, Σ t² of (8)


class DescribesInputs(Algorithm):
    """A method with heads for classes on one encoder, which can say how typical inputs are.

    Its server has `inputs` beside `params`.
    """

    def features(self, client: Client, server: Any, examples: Examples) -> Tensor:
        """(N, D) what the encoder gives."""
        raise NotImplementedError

    def head_shares(self, client: Client, state: Any, server: Any) -> Tensor:
        """(K,) or (N, K) whose the client's training examples are."""
        raise NotImplementedError

    # --- the server -------------------------------------------------------------------------------

    def describe_inputs(self, server: Any, cohort: Cohort) -> Any:
        """Of features under the new encoder, and under older ones of who has not been asked; as
        they were where too few answer, which does not make the training void.
        """
        before: Inputs | None = server.inputs
        old_sums, old_distances = (None, None) if before is None else before
        message = self.message(server, None)
        try:
            sums = cohort.sum(self.measure_features, broadcast=message._replace(inputs=None))
            sums = with_absent(cohort, sums, old_sums)
            described = Inputs(sums, torch.zeros(3, dtype=torch.float64))
            distances = cohort.sum(
                self.measure_distances, broadcast=message._replace(inputs=described)
            )
        except NoReplies:
            return server
        distances = with_absent(cohort, distances, old_distances)
        return server._replace(inputs=Inputs(sums, distances))

    # --- the client -------------------------------------------------------------------------------

    @client_step
    def measure_features(self, client: Client, state: Any, message: Any) -> tuple[Any, Tree]:
        x = self.features(client, message, client.examples)
        shares = self.head_shares(client, state, message)
        return state, Total(
            class_heads.sums_at_heads(x, client.examples.y, shares, client.num_classes)
        )

    @client_step
    def measure_distances(self, client: Client, state: Any, message: Any) -> tuple[Any, Tree]:
        near = self.nearness(client, message, client.examples, log_shares_of_all(message.inputs))
        t = log_distances(near)
        return state, Total(torch.stack([torch.ones_like(t).sum(), t.sum(), t.square().sum()]))

    def nearness(
        self, client: Client, server: Any, examples: Examples, log_shares: Tensor
    ) -> Tensor:
        """(N, K, Y) log s - d² / 2 of every class under every head, with log s (K, Y)."""
        sums = server.inputs.sums
        x = self.features(client, server, examples)
        near: Tensor = log_shares - class_heads.squared_distances(sums, x) / 2
        return near


def log_shares_of_all(inputs: Inputs) -> Tensor:
    """(K, Y) of training examples."""
    counts = inputs.sums.counts
    return (counts / counts.sum()).log()


def log_distances(near: Tensor) -> Tensor:
    """(N,) t of (8)."""
    return (-2 * near.flatten(1).logsumexp(1)).clamp_min(NEAREST).log()


def log_typical(inputs: Inputs, near: Tensor) -> Tensor:
    """(N,) the log-density of t, which is normal over training examples (8)."""
    number, total, squares = inputs.distances
    mean = total / number
    variance = (squares / number - mean.square()).clamp_min(NEAREST)
    off = (log_distances(near) - mean).square() / variance
    typical: Tensor = -(off + (2 * math.pi * variance).log()) / 2
    return typical
