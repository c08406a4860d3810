"""Local: every client trains alone, from the common start. Nothing travels.

The baseline that any federation has to beat. A client that was not in training has no model; what
the mean of the participants' models would do for it is reported apart.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core import ANY_KIND, About, Algorithm, Client, Cohort, Params, Task, Tree, client_step


@dataclass(frozen=True)
class Local(Algorithm):
    about = About("Local", "-", 0, travels="nothing", private="data, model", cost="1")
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    accepts_new_clients: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    def init_server(self, task: Task, seed: int) -> Tree:
        return {}

    def init_client(self, client: Client, message: Tree) -> Params:
        return client.model.init(client.seed)

    @client_step
    def train(self, client: Client, state: Params, message: Tree) -> tuple[Params, Tree]:
        return client.fit(state), {}

    def round(self, server: Tree, cohort: Cohort) -> Tree:
        cohort.sum(self.train)
        return server

    def personal_model(self, client: Client, state: Params) -> Params:
        return state

    def parameters(self, client: Client, state: Params, message: Tree) -> Params:
        return state
