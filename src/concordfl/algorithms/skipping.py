"""Models that a client holds no share of need not be sent to it, trained by it or replied.

With `skip_below` > 0 a client first says which models it holds a share of, and is sent no others;
that is what the server learns of it beside the sums. Nobody skips in the first `recheck_every`
rounds, when models do not yet differ; later every client is sent all models again once in so many
rounds, each in rounds of its own so that rounds cost alike. A model that it had skipped then comes
back with the weight `skip_below`: as a zero it could hardly grow again. Nothing is remembered at
the server, so whoever was away, or is new, is treated by what it has itself.
"""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import (
    Algorithm,
    Client,
    ClientId,
    Cohort,
    Key,
    ModelId,
    SettingError,
    Tree,
    client_step,
)
from ..core.algorithm import Step
from ..toolbox.mixture import Models


class SkipsModels(Algorithm):
    """A method with K models, of which a client trains those that it holds a share of."""

    # every such method has these settings among its own
    num_models: int
    skip_below: float
    recheck_every: int

    def check_skipping(self) -> None:
        """Refuse a threshold that no share may reach; for `__post_init__`."""
        if self.skip_below * self.num_models >= 1:
            raise SettingError(
                f"skip_below must be < 1 / num_models = {1 / self.num_models:g}, got "
                f"{self.skip_below}"
            )

    @abstractmethod
    def shares(self, state: Tree) -> Mapping[ModelId, float]:
        """The share of each model at a client that has trained; 0 or none of one it skipped."""

    @abstractmethod
    def all_models(self, message: Tree) -> Models:
        """The models in a message."""

    @abstractmethod
    def with_models(self, message: Tree, models: Models) -> Tree:
        """The message with these models in the place of all."""

    @client_step
    def ask_for_models(
        self, client: Client, state: Tree, message: None
    ) -> tuple[Tree, list[ModelId] | None]:
        """The models that the client holds a share of; None for all of them."""
        shares = self.shares(state) if client.has_state else {}
        if not shares or self._rechecks(client):
            return state, None
        return state, [k for k, share in shares.items() if share >= self.skip_below]

    def _rechecks(self, client: Client) -> bool:
        """Whether it is the client's turn to look at all models: once in `recheck_every` rounds."""
        offset = Key(client.seed, client.id, "recheck").number
        return (client.round + offset) % self.recheck_every == 0

    def messages(self, cohort: Cohort, message: Tree) -> dict[ClientId, Tree] | None:
        """The message to each client, with the models that it asks for; None: all are sent all."""
        if not self.skip_below or cohort.round < self.recheck_every:
            return None
        there = self.all_models(message)
        made: dict[tuple[ModelId, ...], Tree] = {}  # clients that want the same share a message
        sent: dict[ClientId, Tree] = {}
        for id, asked in cohort.run(self.ask_for_models).items():
            # Where all that a client holds has been removed, it looks at what is left.
            wanted = tuple(k for k in there if k in asked) if asked is not None else ()
            kept = wanted or tuple(there)
            if kept not in made:
                made[kept] = self.with_models(message, {k: there[k] for k in kept})
            sent[id] = made[kept]
        return sent

    def sum_held(self, cohort: Cohort, step: Step, message: Tree) -> Tree:
        """The total of `step` over the cohort, with each client's models."""
        each = self.messages(cohort, message)
        return cohort.sum(step, broadcast=None if each else message, each=each)

    def weights_before(self, kept: Tensor) -> Tensor:
        """Weights to begin an E-step with: a model that was skipped comes back at the threshold."""
        return torch.where(kept == 0, self.skip_below, kept) if self.skip_below else kept


def spread(values: Tensor, models: Models, count: int) -> Tensor:
    """(…, count) the columns of `values` at the numbers of their models, 0 for the others."""
    whole = torch.zeros((*values.shape[:-1], count), dtype=values.dtype)
    whole[..., list(models)] = values
    return whole
