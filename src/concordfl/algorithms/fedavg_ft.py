"""FedAvg-FT: FedAvg, and every client fine-tunes the final model on its own data before it
predicts.

The baseline called FedAvg+FT or FedAvg+ in the personalisation literature (for example Collins et
al.: FedAvg with Fine Tuning, NeurIPS 2022). The tuned model is used to predict and then discarded;
clients that were not in training tune on the examples they bring.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core import About, Algorithm, Client, Params, Repeats, Tree
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgFineTuned(FedAvg):
    about = About(
        "FedAvg-FT",
        "Collins et al.",
        2022,
        travels="the model",
        private="data, tuned model",
        cost="1",
    )
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its own copy of the model"

    tune_epochs: Repeats = 1

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        return {"tuned": super().tune(client, state, message, self.tune_epochs)}

    tune = Algorithm.tune  # it has tuned by itself

    def unadapted(self, client: Client, message: Params) -> Tree:
        return {"tuned": message}

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        tuned: Params = state["tuned"]
        return tuned
