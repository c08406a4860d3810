"""Clients and their examples."""

from .arrays import Arrays, ArraySplits
from .dataset import Dataset, Source
from .federation import Federation, Splits
from .preprocessing import Preprocessing
from .standardise import Standard

__all__ = [
    "ArraySplits",
    "Arrays",
    "Dataset",
    "Federation",
    "Preprocessing",
    "Source",
    "Splits",
    "Standard",
]
