"""FedVC-sg: FedVC whose concepts are trained by gradient, with stop-gradients on either side
(Algorithm 2).

Yan, Long, Jiang, Blumenstein: Personalized Interpretation on Federated Learning: A Virtual Concepts
approach, 2024.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core import About
from .fedvc import FedVC


@dataclass(frozen=True)
class FedVCsg(FedVC):
    about = About(
        "FedVC-sg",
        "Yan et al.",
        2024,
        travels="the model and the concepts",
        private="data, preference",
        cost="about 1.7",
    )

    public_state: ClassVar[frozenset[str]] = frozenset()

    concepts: Literal["em", "gradient"] = "gradient"
