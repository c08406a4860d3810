"""The sections of a report, in the order in which they are read."""

from collections.abc import Callable

from ..document import Absent, Section
from ..runs import Runs
from .clients_map import clients_map
from .comparison import comparison
from .concepts import concepts
from .convergence import convergence
from .diagnosis import diagnosis
from .gains import gains
from .labels import labels
from .likeness import likeness
from .novelty import novelty
from .shares import shares

SECTIONS: tuple[Callable[[Runs], Section | Absent], ...] = (
    comparison,
    gains,
    convergence,
    diagnosis,
    likeness,
    shares,
    clients_map,
    labels,
    concepts,
    novelty,
)
