"""Every method by its name. This is the only registry: a method is one file here and one line below."""

from ..core import Algorithm
from .centralized import Centralized
from .fedavg import FedAvg
from .fedavg_ft import FedAvgFineTuned
from .fedconcat import FedConcat
from .fedconcat_id import FedConcatID
from .fedconceptem import FedConceptEM
from .fedem import FedEM
from .fedgmm import FedGMM
from .fedgmm_unsupervised import FedGMMUnsupervised
from .fedlc import FedLC
from .fedprox import FedProx
from .fedrs import FedRS
from .local import Local
from .moon import MOON

ALGORITHMS: dict[str, type[Algorithm]] = {
    "centralized": Centralized,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFineTuned,
    "fedconcat": FedConcat,
    "fedconcat-id": FedConcatID,
    "fedconceptem": FedConceptEM,
    "fedem": FedEM,
    "fedgmm": FedGMM,
    "fedgmm-unsupervised": FedGMMUnsupervised,
    "fedlc": FedLC,
    "fedprox": FedProx,
    "fedrs": FedRS,
    "local": Local,
    "moon": MOON,
}
