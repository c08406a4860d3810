"""A user's own functions and classes: by name in settings, as `package.module:function`, or given
as objects in Python.

Such a name runs code: whoever reads settings that may be a stranger's asks `names_own_code` before
anything is imported. An object that no other process could import is written as `<name>`, which
says what must be given again.
"""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from .errors import SettingError
from .settings import received

PATTERN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # identifiers, dots and one colon


def names_own_code(name: object) -> bool:
    """Whether a setting names code that is not concordfl's."""
    return isinstance(name, str) and ":" in name


def check_name(name: str, setting: str) -> None:
    """Refuse what cannot name a function; nothing is imported."""
    if not PATTERN.fullmatch(name):
        raise SettingError(
            f"{setting} must be written as `package.module:function`, got {received(name)}"
        )


def find_function(name: str, setting: str) -> Callable[..., Any]:
    """Import the function or class that `setting` names."""
    check_name(name, setting)
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may fail in any way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"{setting} must be importable as `package.module:function`, got {name!r}: {reason}"
        ) from None
    if not callable(found):
        raise SettingError(
            f"{setting} must name a function, got {name!r}, a {type(found).__name__}"
        )
    function: Callable[..., Any] = found
    return function


# --- what the code says ---------------------------------------------------------------------------

# The digest of a module's source when it was first asked for, by name, with the spec that is new
# when the module is loaded anew: a file that is edited later is not the code that runs here.
_digests: dict[str, tuple[ModuleSpec, str]] = {}


def source_digests(named: Mapping[str, str]) -> dict[str, str]:
    """The sha256 of the source, by module, of code that settings name: of the module in the name,
    and of the one that defines what is found there. A module whose source cannot be had is left
    out. The code is imported.
    """
    modules = set()
    for setting, name in named.items():
        defined_in = getattr(find_function(name, setting), "__module__", None)
        modules |= {name.partition(":")[0], str(defined_in)}
    found = {module: _source_digest(module) for module in sorted(modules)}
    return {module: digest for module, digest in found.items() if digest is not None}


def _source_digest(module: str) -> str | None:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if not isinstance(spec, ModuleSpec) or spec.origin is None:
        return None
    seen, digest = _digests.get(module, (None, ""))
    if seen is not spec:
        try:
            digest = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
        except OSError:  # built in, or in an archive
            return None
        _digests[module] = spec, digest
    return digest


# --- objects that were given in Python ------------------------------------------------------------


def name_of_object(thing: object) -> str:
    """How settings name a function or class: `package.module:name` where another process can import
    it, else `<name>`.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    path = f"{module}:{name}"
    # What is defined in a script or a notebook is in `__main__`, which is another one elsewhere.
    if isinstance(name, str) and module != "__main__" and PATTERN.fullmatch(path):
        try:
            if getattr(importlib.import_module(str(module)), name) is thing:
                return path
        except Exception:
            pass
    return object_name(thing)


def object_name(thing: object) -> str:
    """The name of a function or class that must be given again: `<name>`."""
    name = getattr(thing, "__qualname__", type(thing).__name__)
    return f"<{str(name).rpartition('.')[2].strip('<>')}>"


def is_given(name: object) -> bool:
    """Whether settings name something that only the Python that ran them had."""
    return isinstance(name, str) and name.startswith("<")


def refuse_given(name: object, section: str) -> None:
    """Say what must be given again, where settings name an object."""
    if is_given(name):
        raise SettingError(
            f"{section}.name must be importable if it is read from a file, got {received(name)}, "
            f"which was given in Python: give it again, as in cf.resume(folder, {section}=...)"
        )
