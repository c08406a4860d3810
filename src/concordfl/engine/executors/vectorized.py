"""Blocks of clients computed together in this process, for small dense networks.

The one executor whose results are not those of the others to the bit, but within
`vectorized.TOLERANCE`: sums run in another order.
"""

from ..vectorized import VectorNode
from .serial import Serial


class Vectorized(Serial):
    name = "vectorized"
    node_type = VectorNode
