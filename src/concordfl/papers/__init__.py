"""The papers' tables and figures, by one command: what each of them needs is data in
`experiments/PAPER/reproduce.toml`.
"""

from .entries import PAPERS, SCALES, Item, Paper, find_item, read_paper
from .estimate import Estimator
from .reproduce import Reproduction, data_of, kept_runs, no_display, reproduce, spoken

__all__ = [
    "PAPERS",
    "SCALES",
    "Estimator",
    "Item",
    "Paper",
    "Reproduction",
    "data_of",
    "find_item",
    "kept_runs",
    "no_display",
    "read_paper",
    "reproduce",
    "spoken",
]
