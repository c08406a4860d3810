"""Clients and their examples."""

from .dataset import Dataset, Source
from .federation import Arrays, Federation, Splits
from .standardise import Standard

__all__ = ["Arrays", "Dataset", "Federation", "Source", "Splits", "Standard"]
