"""Clients and their examples."""

from .dataset import Dataset, Source
from .federation import Arrays, Federation, Splits

__all__ = ["Arrays", "Dataset", "Federation", "Source", "Splits"]
