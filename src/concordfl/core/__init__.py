"""What an algorithm may use. Nothing in here imports another part of concordfl."""

from . import tree
from .aggregation import Aggregation, Averaged, Chosen, Mean, ServerStep, Total
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
    FormatError,
    NoReplies,
    SettingError,
    WorkerError,
)
from .model import Model, Params, encoder_and_head
from .modules import Classifier
from .optim import Training
from .prediction import Predictor
from .protocol import Missing, Order, Outcome
from .random import Key
from .settings import (
    ByteCount,
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
    Seed,
    Settings,
    Share,
    Width,
    WorkerCount,
)
from .tree import Tree, Weighted, weighted

__all__ = [
    "About",
    "Aggregation",
    "Algorithm",
    "Averaged",
    "Batch",
    "ByteCount",
    "CheckpointError",
    "Chosen",
    "Classifier",
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
    "FormatError",
    "Fraction",
    "Key",
    "Likelihood",
    "Mean",
    "Missing",
    "Model",
    "ModelCount",
    "ModelId",
    "NoReplies",
    "NonNegative",
    "Order",
    "Outcome",
    "Params",
    "Positive",
    "Predictor",
    "Probability",
    "Repeats",
    "RepeatsOrZero",
    "Replies",
    "Scale",
    "Seed",
    "ServerStep",
    "SettingError",
    "Settings",
    "Share",
    "Stage",
    "Task",
    "Total",
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
