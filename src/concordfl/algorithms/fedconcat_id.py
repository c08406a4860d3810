"""FedConcat-ID: FedConcat whose server infers the clients' labels from their models; no label
information leaves a client.

Diao, Li, He: Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024;
stage 1-B.
"""

from dataclasses import dataclass
from typing import Literal

from ..core import About
from .fedconcat import FedConcat


@dataclass(frozen=True)
class FedConcatID(FedConcat):
    about = About(
        "FedConcat-ID",
        "Diao et al.",
        2024,
        travels="the model, K encoders once, a head",
        private="data",
        cost="1, then 0",
    )

    infer: Literal["model", "bias"] = "model"
