"""FedAvg by pfl's simulation, in a virtual environment that has pfl: see README.md."""

import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Network(nn.Module):
    """What pfl trains: a network that knows its loss and its figures."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.module(x)
        return outputs

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Marks(TrainingProcessCallback):  # type: ignore[misc] # pfl is not installed where we check
    """Writes down when a round was over, once where there are several processes."""

    def __init__(self, file: str) -> None:
        self.file = file

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if get_framework_module().distributed.global_rank == 0:
            with open(self.file, "a") as marks:
                marks.write(f"{time.time()}\n")
        return False, Metrics()


def main(workload_file: str, rounds: int, marks_file: str) -> None:
    torch.set_num_threads(1)
    workload = torch.load(workload_file, weights_only=False, mmap=True)
    pairs = zip(workload["x"], workload["y"], strict=True)
    users = {str(number): pair for number, pair in enumerate(pairs)}
    network = Network(workload["module"])
    model = PyTorchModel(
        model=network,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, momentum=workload["momentum"]
        ),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset(users[user], user_id=user),
        get_user_sampler("minimize_reuse", list(users)),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,  # pfl evaluates the first round in any case
            train_cohort_size=workload["cohort"],
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload["lr"],
            local_batch_size=workload["batch_size"],
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Marks(marks_file)],
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
