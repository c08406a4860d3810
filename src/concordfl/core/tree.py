"""Trees: dicts, lists, tuples and NamedTuples whose leaves are tensors, numbers, strings or None.

Parameters, client states, messages and replies are all trees. They are values: nothing here changes
its arguments.

>>> add({"a": torch.ones(2)}, {"b": 1.0})
{'a': tensor([1., 1.]), 'b': 1.0}
"""

import hashlib
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

Tree = Any  # recursive; the leaves and containers are named in the module docstring


def is_leaf(tree: Tree) -> bool:
    return not isinstance(tree, (dict, list, tuple))


def _rebuild(like: Tree, children: Iterable[Tree]) -> Tree:
    """A list, tuple or NamedTuple of the same type as `like` with other children."""
    return type(like)(*children) if hasattr(like, "_fields") else type(like)(children)


def map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` leaf by leaf to trees of one structure."""
    if isinstance(tree, dict):
        return {key: map(fn, value, *(other[key] for other in rest)) for key, value in tree.items()}
    if is_leaf(tree):
        return fn(tree, *rest)
    return _rebuild(tree, (map(fn, *children) for children in zip(tree, *rest, strict=True)))


def leaves(tree: Tree) -> Iterator[Any]:
    if is_leaf(tree):
        yield tree
    else:
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(child)


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves by their dotted path: `{"a": {"b": x}}` gives `{"a.b": x}`."""
    if is_leaf(tree):
        return {prefix: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    flat: dict[str, Any] = {}
    for key, child in items:
        flat.update(flatten(child, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def add(left: Tree, right: Tree) -> Tree:
    """The sum of two trees. Dicts give the union of their keys; an absent key counts as zero."""
    if isinstance(left, dict):
        total = {
            key: add(value, right[key]) if key in right else value for key, value in left.items()
        }
        return total | {key: value for key, value in right.items() if key not in left}
    if left is None and right is None:
        return None
    if is_leaf(left):
        return left + right
    return _rebuild(left, (add(a, b) for a, b in zip(left, right, strict=True)))


def total(trees: Sequence[Tree]) -> Tree:
    """The sum of several trees, along the binary tree that executors use: neighbours first."""
    parts = list(trees)
    while len(parts) > 1:
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return map(lambda leaf: leaf * factor, tree)


def subtract(left: Tree, right: Tree) -> Tree:
    return map(lambda a, b: a - b, left, right)


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose leaves carry a new first axis over `trees`."""
    return map(lambda *parts: torch.stack(parts), *trees)


def mean(trees: Sequence[Tree]) -> Tree:
    """The plain mean of several trees."""
    return map(lambda *parts: sum(parts[1:], start=parts[0]) / len(parts), *trees)


def subset(params: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The entries called `names`, in the order of `params`."""
    wanted = frozenset(names)
    return {name: value for name, value in params.items() if name in wanted}


def sq_dist(left: Tree, right: Tree) -> Tensor:
    """The squared Euclidean distance over all leaves."""
    distances = map(lambda a, b: (a - b.to(a.device)).square().sum(), left, right)
    return torch.stack(list(leaves(distances))).sum()


def num_bytes(tree: Tree) -> int:
    """Bytes of the leaves: tensors and strings by their size, numbers 8, None nothing."""
    total = 0
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
        elif isinstance(leaf, str):
            total += len(leaf.encode())
        elif leaf is not None:
            total += 8
    return total


def is_finite(tree: Tree) -> bool:
    """Whether no leaf holds a NaN or an infinity."""
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            # A sum is finite only if all parts are; the exact look is needed where a finite sum
            # overflows.
            if leaf.is_floating_point() and not leaf.sum().isfinite() and not leaf.isfinite().all():
                return False
        elif isinstance(leaf, float) and not math.isfinite(leaf):
            return False
    return True


def normal(tree: Tree) -> Tree:
    """The same values in the form in which `unpack` gives them: no gradients, on the CPU, in the
    default memory layout.

    Kernels may add in another order where the layout is another one; in this form all executors see
    the same bits.
    """
    if isinstance(tree, Tensor):
        return tree.detach().cpu().contiguous()
    if isinstance(tree, dict):
        return {_key(key): normal(value) for key, value in tree.items()}
    if is_leaf(tree):
        return _plain(tree)
    return _rebuild(tree, [normal(child) for child in tree])


def equal(left: Tree, right: Tree) -> bool:
    """Whether two trees agree to the bit."""
    return pack(left) == pack(right)


class Weighted(NamedTuple):
    """A sum that knows its weight: add as many as you like, then take the `mean`."""

    total: Tree
    weight: float

    def mean(self, otherwise: Tree = None) -> Tree:
        """total / weight; `otherwise` where nothing has been added."""
        if self.weight == 0:
            return otherwise
        return map(lambda leaf: leaf / self.weight, self.total)


def weighted(tree: Tree, weight: float) -> Weighted:
    """`tree` counted `weight` times, ready to be summed over clients."""
    return Weighted(scale(tree, float(weight)), float(weight))


# --- bytes: one serialisation for checkpoints, worker pipes, the wire and hashes ------------------


def pack(tree: Tree) -> bytes:
    """Bytes that `unpack` turns back into the same tree: safetensors, with the structure as its one
    metadata entry.
    """
    tensors: dict[str, Tensor] = {}
    structure = _describe(tree, tensors)
    return safetensors.torch.save(
        _apart(tensors), {"tree": json.dumps(structure, separators=(",", ":"))}
    )


def unpack(data: bytes) -> Tree:
    """The tree that `pack` turned into `data`. Nothing in `data` is executed."""
    header_size = int.from_bytes(data[:8], "little")
    structure = json.loads(json.loads(data[8 : 8 + header_size])["__metadata__"]["tree"])
    return _restore(structure, safetensors.torch.load(data))


def digest(tree: Tree) -> str:
    """sha256 of a tree's bytes."""
    return hashlib.sha256(pack(tree)).hexdigest()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same values, no two tensors in one storage: safetensors insists."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        storage = value.untyped_storage().data_ptr()
        result[name] = value.clone() if storage in seen else value
        seen.add(storage)
    return result


def _describe(tree: Tree, tensors: dict[str, Tensor]) -> Any:
    """The JSON form of a tree's structure; its tensors are put into `tensors` under running
    numbers.
    """
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().contiguous()
        return ["tensor", name]
    if isinstance(tree, dict):
        return ["dict", [[_key(key), _describe(value, tensors)] for key, value in tree.items()]]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        kind = f"{type(tree).__module__}:{type(tree).__qualname__}"
        return ["named", kind, [_describe(value, tensors) for value in tree]]
    if isinstance(tree, (list, tuple)):
        return [type(tree).__name__, [_describe(value, tensors) for value in tree]]
    return ["value", _plain(tree)]


def _plain(leaf: Any) -> Any:
    # The exact types: a numpy number is a float too, and would come back as another type.
    if leaf is not None and type(leaf) not in (bool, int, float, str):
        raise TypeError(
            f"a tree's leaves must be tensors, numbers, strings or None, got {type(leaf).__name__}"
        )
    return leaf


def _key(key: Any) -> Any:
    if type(key) not in (str, int):
        raise TypeError(f"a tree's keys must be strings or integers, got {key!r}")
    return key


def _restore(structure: Any, tensors: Mapping[str, Tensor]) -> Tree:
    kind = structure[0]
    if kind == "tensor":
        return tensors[structure[1]]
    if kind == "value":
        return structure[1]
    if kind == "dict":
        return {key: _restore(value, tensors) for key, value in structure[1]}
    children = [_restore(value, tensors) for value in structure[-1]]
    if kind == "named":
        return _named_tuple(structure[1])(*children)
    return children if kind == "list" else tuple(children)


def _named_tuple(kind: str) -> type[Any]:
    module, _, name = kind.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise TypeError(f"{kind} is not a NamedTuple")
    return found
