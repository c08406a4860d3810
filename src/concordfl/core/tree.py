"""Trees: dicts, lists, tuples and NamedTuples whose leaves are tensors, numbers, strings or None.

Parameters, client states, messages and replies are all trees. They are values: nothing here changes
its arguments.

>>> add({"a": torch.ones(2)}, {"b": 1.0})
{'a': tensor([1., 1.]), 'b': 1.0}
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from .errors import FormatError

Tree = Any  # recursive; the leaves and containers are named in the module docstring
NamedTupleType = TypeVar("NamedTupleType", bound=type[tuple[Any, ...]])

MAX_DEPTH = 100  # levels of containers; far more than any method needs, far less than the stack has

_registered: dict[str, type[tuple[Any, ...]]] = {}  # the NamedTuples that bytes may name


def register(kind: NamedTupleType) -> NamedTupleType:
    """Let trees hold the NamedTuple `kind`; bytes name it by its `__name__`. A class decorator:

        @tree.register
        class ServerState(NamedTuple):
            params: Params
            splits: int

    Bytes can only ever name what is registered, so reading them imports and executes nothing.
    """
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise TypeError(f"only a NamedTuple can be registered, got {kind!r}")
    known = _registered.get(kind.__name__)
    if known is not None and _origin(known) != _origin(kind):
        raise TypeError(
            f"registered NamedTuples must have different names, got {_origin(known)} and "
            f"{_origin(kind)}: rename one of them"
        )
    _registered[kind.__name__] = kind
    return kind


def registered_in(module: str) -> list[type[tuple[Any, ...]]]:
    """The NamedTuples of a module that are registered."""
    return [kind for kind in _registered.values() if kind.__module__ == module]


def _origin(kind: type[Any]) -> str:
    """Where a class was defined: the same for the copies that reloading and pickling make."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def is_leaf(tree: Tree) -> bool:
    return not isinstance(tree, (dict, list, tuple))


def rebuild(like: Tree, children: Iterable[Tree]) -> Tree:
    """A list, tuple or NamedTuple of the same type as `like` with other children."""
    return type(like)(*children) if hasattr(like, "_fields") else type(like)(children)


def map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` leaf by leaf to trees of one structure."""
    if isinstance(tree, dict):
        return {key: map(fn, value, *(other[key] for other in rest)) for key, value in tree.items()}
    if is_leaf(tree):
        return fn(tree, *rest)
    return rebuild(tree, (map(fn, *children) for children in zip(tree, *rest, strict=True)))


def leaves(tree: Tree) -> Iterator[Any]:
    if is_leaf(tree):
        yield tree
    else:
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(child)


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves by their dotted path: `{"a": {"b": x}}` gives `{"a.b": x}`.

    A path is made of a dict's keys, a NamedTuple's field names and the numbers of other items.
    """
    if is_leaf(tree):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for key, child in _items(tree):
        flat.update(flatten(child, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _items(tree: Tree) -> Iterable[tuple[Any, Tree]]:
    if isinstance(tree, dict):
        return tree.items()
    return zip(tree._fields, tree, strict=True) if hasattr(tree, "_fields") else enumerate(tree)


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
        _require_one_shape(left, right)
        return left + right
    return rebuild(left, (add(a, b) for a, b in zip(left, right, strict=True)))


def _require_one_shape(left: Any, right: Any) -> None:
    """Tensors of other shapes would be added all the same, by repeating one of them."""
    shapes = [tuple(leaf.shape) for leaf in (left, right) if isinstance(leaf, Tensor)]
    if len(set(shapes)) > 1:
        raise ValueError(f"added tensors must have one shape, got {shapes[0]} and {shapes[1]}")


def total(trees: Sequence[Tree]) -> Tree:
    """The sum of several trees, along the binary tree that executors use: neighbours first."""
    parts = list(trees)
    while len(parts) > 1:
        pairs = [parts[index : index + 2] for index in range(0, len(parts), 2)]
        parts = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return map(lambda leaf: leaf * factor, tree)


def scale_rows(tree: Tree, factors: Tensor) -> Tree:
    """Every tensor's rows, each times its own of `factors` (R,)."""
    return map(lambda leaf: leaf * _beside(factors, leaf), tree)


def _beside(by_row: Tensor, leaf: Tensor) -> Tensor:
    """(R,) numbers in the form in which they meet the rows of a tensor (R, ...)."""
    return by_row.to(leaf.dtype).view(-1, *(1,) * (leaf.ndim - 1))


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
            total += len(leaf.encode(errors="surrogatepass"))
        elif leaf is not None:
            total += 8
    return total


def is_finite(tree: Tree) -> bool:
    """Whether no leaf holds a NaN or an infinity."""
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            # A sum is finite only if all parts are; the exact look is needed where a finite sum
            # overflows.
            suspect = leaf.is_floating_point() and not math.isfinite(leaf.sum().item())
            if suspect and not leaf.isfinite().all():
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
    return rebuild(tree, [normal(child) for child in tree])


def equal(left: Tree, right: Tree) -> bool:
    """Whether two trees agree to the bit."""
    return pack(left) == pack(right)


@register
class Weighted(NamedTuple):
    """A sum that knows its weight, or that of each row: add as many as you like, then take the
    `mean`.
    """

    total: Tree
    weight: float | Tensor

    def mean(self, otherwise: Tree = None) -> Tree:
        """total / weight; `otherwise` where nothing has been added."""
        weight = self.weight
        if isinstance(weight, Tensor):
            return map(
                lambda leaf, old: torch.where(
                    _beside(weight, leaf) == 0, old, leaf / _beside(weight, leaf)
                ),
                self.total,
                otherwise,
            )
        if weight == 0:
            return otherwise
        return map(lambda leaf: leaf / weight, self.total)


def weighted(tree: Tree, weight: float | Tensor) -> Weighted:
    """`tree` counted `weight` times, or each row by its own of `weight` (R,), ready to be summed
    over clients.
    """
    if isinstance(weight, Tensor):
        return Weighted(scale_rows(tree, weight), weight)
    return Weighted(scale(tree, float(weight)), float(weight))


# --- bytes: one serialisation for checkpoints, worker pipes, the wire and hashes ------------------


def pack(tree: Tree) -> bytes:
    """Bytes that `unpack` turns back into the same tree: safetensors, with the structure as its one
    metadata entry.
    """
    tensors: dict[str, Tensor] = {}
    structure = _describe(tree, tensors, MAX_DEPTH)
    return safetensors.torch.save(
        _without_aliases(tensors), {"tree": json.dumps(structure, separators=(",", ":"))}
    )


def unpack(data: bytes) -> Tree:
    """The tree that `pack` turned into `data`; nothing in `data` is imported or executed.

    FormatError where `data` is anything else.
    """
    structure = _read_structure(data)
    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # the library raises many kinds, and all mean the same
        raise FormatError(f"bytes must be safetensors, got {_one_line(error)}") from None
    tree = _restore(structure, tensors, MAX_DEPTH)
    if tensors:
        raise FormatError(f"every tensor must belong to the tree, got {sorted(tensors)[0]!r} more")
    return tree


def digest(tree: Tree) -> str:
    """sha256 of a tree's bytes."""
    return hashlib.sha256(pack(tree)).hexdigest()


def _without_aliases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same values, no two tensors in one storage: safetensors insists."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        storage = value.untyped_storage().data_ptr()
        result[name] = value.clone() if storage in seen else value
        seen.add(storage)
    return result


def _describe(tree: Tree, tensors: dict[str, Tensor], depth: int) -> Any:
    """The JSON form of a tree's structure, of at most `depth` levels; its tensors are put into
    `tensors` under running numbers.
    """
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree.detach().cpu().contiguous()
        return ["tensor", name]
    if is_leaf(tree):
        return ["value", _plain(tree)]
    if depth == 0:
        raise TypeError(f"a tree must have at most {MAX_DEPTH} levels, got more")
    if isinstance(tree, dict):
        items = tree.items()
        return ["dict", [[_key(key), _describe(value, tensors, depth - 1)] for key, value in items]]
    children = [_describe(value, tensors, depth - 1) for value in tree]
    if hasattr(tree, "_fields"):
        return ["named", _registered_name(type(tree)), children]
    return ["list" if isinstance(tree, list) else "tuple", children]


def _registered_name(kind: type[Any]) -> str:
    known = _registered.get(kind.__name__)
    if known is None or _origin(known) != _origin(kind):
        raise TypeError(
            f"a tree's NamedTuples must be registered, got {_origin(kind)}: write @tree.register "
            "above the class"
        )
    return kind.__name__


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


def _read_structure(data: bytes) -> Any:
    """The JSON form of the tree's structure, from the safetensors header of `data`."""
    header_end = 8 + int.from_bytes(data[:8], "little")
    if not 8 < header_end <= len(data):
        raise FormatError(f"bytes must be a packed tree, got {len(data)} bytes without a header")
    try:
        return json.loads(json.loads(bytes(data[8:header_end]))["__metadata__"]["tree"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FormatError(f"bytes must be a packed tree, got {_one_line(error)}") from None


def _restore(node: Any, tensors: dict[str, Tensor], depth: int) -> Tree:
    """The tree that `_describe` turned into `node`; its tensors are taken out of `tensors`."""
    match node:
        case ["tensor", str(name)] if name in tensors:
            return tensors.pop(name)
        case ["value", None | bool() | int() | float() | str()]:
            return node[1]
        case ["dict" | "list" | "tuple" | "named", *_] if depth == 0:
            raise FormatError(f"a tree must have at most {MAX_DEPTH} levels, got more")
        case ["dict", list(items)]:
            return _restore_dict(items, tensors, depth - 1)
        case ["list", list(children)]:
            return [_restore(child, tensors, depth - 1) for child in children]
        case ["tuple", list(children)]:
            return tuple([_restore(child, tensors, depth - 1) for child in children])
        case ["named", str(name), list(children)] if name in _registered:
            kind: Any = _registered[name]
            # Fields that came later have defaults, so that older bytes can be read.
            required = len(kind._fields) - len(kind._field_defaults)
            if required <= len(children) <= len(kind._fields):
                return kind(*[_restore(child, tensors, depth - 1) for child in children])
    raise FormatError(f"a tree's structure must be known, got {_excerpt(node)}")


def _restore_dict(items: list[Any], tensors: dict[str, Tensor], depth: int) -> dict[Any, Tree]:
    result: dict[Any, Tree] = {}
    for item in items:
        match item:
            case [str() | int() as key, value] if key not in result and not isinstance(key, bool):
                result[key] = _restore(value, tensors, depth)
            case _:
                raise FormatError(f"a tree's items must be a key and a value, got {_excerpt(item)}")
    return result


def _excerpt(node: Any) -> str:
    """The beginning of what was found, on one line; its inner parts may be deep or long."""
    parts = node if isinstance(node, list) else [node]
    words = [repr(part)[:40] if is_leaf(part) else "..." for part in parts[:3]]
    return f"[{', '.join(words)}]" if isinstance(node, list) else words[0]


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
