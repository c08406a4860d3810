"""FedRep: a shared body, and a head of every client's own.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021. The local epochs are `head_epochs` and `body_epochs`, ten and one as in the
paper's experiments on CIFAR-10, whatever the run's are. A client that was not in training fits a
head on the frozen body, for as many epochs as the others. Clients count alike in the body's
average, as in the paper, unless `average` is "size". Departures: none.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Average,
    Client,
    Cohort,
    Mean,
    Params,
    Repeats,
    SettingError,
    Task,
    Tree,
    client_step,
    tree,
)


@dataclass(frozen=True)
class FedRep(Algorithm):
    about = About(
        "FedRep", "Collins et al.", 2021, travels="the body", private="data, head", cost="about 5"
    )
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its head"

    head_epochs: Repeats = 10  # before the body's; also a new client's
    body_epochs: Repeats = 1
    average: Average = "equal"  # of the clients' bodies

    def init_server(self, task: Task, seed: int) -> Params:
        if not task.model.encoder_names or not task.model.head_names:
            raise SettingError(
                "fedrep needs a model with an encoder and a head that have parameters, got one "
                "without"
            )
        return tree.subset(task.model.init(seed), task.model.encoder_names)

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"head": tree.subset(client.model.init(client.seed), client.model.head_names)}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        model = client.model
        with_head = self._fit_head(client, state, message)
        trained = client.fit(
            with_head, only=model.encoder_names, epochs=self.body_epochs, purpose="body"
        )
        body = tree.subset(trained, model.encoder_names)
        head = tree.subset(with_head, model.head_names)
        return {"head": head}, Mean(body, client.weight(self.average), around=message)

    def _fit_head(self, client: Client, state: Tree, message: Params) -> Params:
        whole = {**message, **state["head"]}
        return client.fit(
            whole, only=client.model.head_names, epochs=self.head_epochs, purpose="head"
        )

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        if client.has_state:
            return state
        with_head = self._fit_head(client, state, message)
        return {"head": tree.subset(with_head, client.model.head_names)}

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        return {**message, **state["head"]}
