"""Predictor: what a client predicts with, made ready. The one way from a state to a prediction."""

from typing import Any, NamedTuple

from torch import Tensor

from .algorithm import Algorithm, Likelihood
from .client import Client, Examples
from .errors import SettingError
from .tree import Tree


class Predictor(NamedTuple):
    """A client, the state and the message that it predicts with."""

    algorithm: Algorithm
    client: Client
    state: Tree
    message: Tree

    @classmethod
    def prepare(
        cls,
        algorithm: Algorithm,
        client: Client,
        state: Tree | None,
        message: Tree,
        *,
        new: bool,
        tune_epochs: int = 0,
    ) -> "Predictor":
        """By the method's rules: a first state where there is none, then what `adapt` makes of it.

        A client that was not in training (`new`) may also tune what it has received; one that has
        no examples either is somebody of whom nothing is known.
        """
        if new and not client.size:
            nothing = algorithm.unadapted(client, message)
            if nothing is None:
                raise SettingError(
                    "a new client must have examples to adapt to where no model serves everybody, "
                    f"got none of {client.id!r}"
                )
            return cls(algorithm, client, nothing, message)
        start = algorithm.init_client(client, message) if state is None else state
        adapted = algorithm.adapt(client, start, message, new=new)
        if new and tune_epochs:
            message = algorithm.tune(client, adapted, message, tune_epochs)
        return cls(algorithm, client, adapted, message)

    def predictions(self, examples: Examples) -> Tensor:
        """(N, Y) class probabilities, or what the objective says, in the targets' own unit."""
        found = self.algorithm.predict(self.client, self.state, self.message, examples)
        return self.client.objective.in_own_unit(found)

    def scores(self, examples: Examples) -> dict[str, float]:
        """The objective's metrics on labelled examples."""
        objective = self.client.objective
        return objective.scores(self.predictions(examples), objective.in_own_unit(examples.y))

    def likelihood(self, examples: Examples) -> Likelihood:
        """How likely examples are at this client."""
        return self.algorithm.likelihood(self.client, self.state, self.message, examples)

    def likelihood_anywhere(self, examples: Examples) -> Likelihood:
        """How likely examples are under the weights of all clients."""
        return self.algorithm.likelihood(self.client, None, self.message, examples)

    def inspect(self) -> dict[str, Any]:
        return self.algorithm.inspect(self.client, self.state, self.message)
