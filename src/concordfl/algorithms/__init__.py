"""Every method by its name.

This is the only registry: a method is one file here and one line below.
"""

from ..core import Algorithm
from .apfl import APFL
from .centralized import Centralized
from .cfl import CFL
from .concord import Concord
from .ditto import Ditto
from .fedavg import FedAvg
from .fedavg_ft import FedAvgFineTuned
from .fedbn import FedBN
from .fedconcat import FedConcat
from .fedconcat_id import FedConcatID
from .fedconceptem import FedConceptEM
from .feddual import FedDual
from .fedem import FedEM
from .fedgmm import FedGMM
from .fedgmm_unsupervised import FedGMMUnsupervised
from .fedlc import FedLC
from .fednova import FedNova
from .fedopt import FedAdagrad, FedAdam, FedYogi
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrs import FedRS
from .fedsoft import FedSoft
from .fedvc import FedVC
from .fedvc_sg import FedVCsg
from .fesem import FeSEM
from .ifca import IFCA
from .local import Local
from .moon import MOON
from .pfedme import PFedMe
from .scaffold import Scaffold

# Other names of methods, understood wherever a method is named.
ALIASES: dict[str, str] = {"fedrc": "fedconceptem"}

ALGORITHMS: dict[str, type[Algorithm]] = {
    "apfl": APFL,
    "centralized": Centralized,
    "cfl": CFL,
    "concord": Concord,
    "ditto": Ditto,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFineTuned,
    "fedbn": FedBN,
    "fedconcat": FedConcat,
    "fedconcat-id": FedConcatID,
    "fedconceptem": FedConceptEM,
    "feddual": FedDual,
    "fedem": FedEM,
    "fedgmm": FedGMM,
    "fedgmm-unsupervised": FedGMMUnsupervised,
    "fedlc": FedLC,
    "fednova": FedNova,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedrs": FedRS,
    "fedsoft": FedSoft,
    "fedvc": FedVC,
    "fedvc-sg": FedVCsg,
    "fedyogi": FedYogi,
    "fesem": FeSEM,
    "ifca": IFCA,
    "local": Local,
    "moon": MOON,
    "pfedme": PFedMe,
    "scaffold": Scaffold,
}
