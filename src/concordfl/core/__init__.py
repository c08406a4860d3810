"""What an algorithm may use. Nothing in here imports another part of concordfl."""

from . import tree
from .algorithm import About, Algorithm, Likelihood, Stage, Task, client_step
from .client import (
    Batch,
    Client,
    ClientId,
    Examples,
    ModelId,
    Scale,
    batches_per_epoch,
    weighted_loss,
)
from .cohort import Cohort, Replies
from .errors import (
    CheckpointError,
    ClientStepError,
    ConcordError,
    DataError,
    NoReplies,
    SettingError,
    WorkerError,
)
from .model import Model, Params, encoder_and_head
from .optim import Training
from .random import Key
from .settings import (
    Count,
    CountOrZero,
    Draws,
    Fraction,
    ModelCount,
    NonNegative,
    Positive,
    Probability,
    Repeats,
    RepeatsOrZero,
    Settings,
    Share,
    Width,
    WorkerCount,
)
from .tree import Tree, Weighted, weighted

__all__ = [
    "About",
    "Algorithm",
    "Batch",
    "CheckpointError",
    "Client",
    "ClientId",
    "ClientStepError",
    "Cohort",
    "ConcordError",
    "Count",
    "CountOrZero",
    "DataError",
    "Draws",
    "Examples",
    "Fraction",
    "Key",
    "Likelihood",
    "Model",
    "ModelCount",
    "ModelId",
    "NoReplies",
    "NonNegative",
    "Params",
    "Positive",
    "Probability",
    "Repeats",
    "RepeatsOrZero",
    "Replies",
    "Scale",
    "SettingError",
    "Settings",
    "Share",
    "Stage",
    "Task",
    "Training",
    "Tree",
    "Weighted",
    "Width",
    "WorkerCount",
    "WorkerError",
    "batches_per_epoch",
    "client_step",
    "encoder_and_head",
    "tree",
    "weighted",
    "weighted_loss",
]
