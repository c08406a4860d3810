"""FedNova: FedAvg in which a client that takes more local steps does not pull the model further.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020. What clients move is divided by ‖a_i‖₁, averaged by their
number of examples, and multiplied by τ_eff = Σ p_i ‖a_i‖₁. Local steps may have momentum:
`Training.plain_steps` is ‖a_i‖₁. Departures: no proximal term, and no local rates that change
within a round, both of which the paper has too.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import About, Client, Cohort, Mean, Params, Total, Tree, client_step, tree
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedNova(FedAvg):
    about = About("FedNova", "Wang et al.", 2020, travels="the model", private="data", cost="1")
    vectorizes: ClassVar[bool] = True
    needs_sgd: ClassVar[bool] = True

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        trained = client.fit(message)
        steps = client.training.plain_steps(client.num_steps)  # ‖a_i‖₁
        change = tree.subtract(trained, message)
        per_step = {
            name: value / steps if name in client.model.weight_names else value
            for name, value in change.items()
        }
        around = tree.map(torch.zeros_like, message)  # the change of nobody
        return state, {
            "change": Mean(per_step, client.size, around),
            "steps": Total(client.size * steps),
        }

    def round(self, server: Params, cohort: Cohort) -> Params:
        total = cohort.sum(self.train, broadcast=server)
        change = total["change"].mean(otherwise=tree.map(torch.zeros_like, server))
        effective_steps = total["steps"] / total["change"].weight  # τ_eff
        weights = cohort.task.model.weight_names
        return {
            name: value + (effective_steps if name in weights else 1) * change[name]
            for name, value in server.items()
        }
