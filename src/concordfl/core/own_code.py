"""Names of a user's own functions in settings, as `package.module:function`.

Such a name runs code: whoever reads settings that may be a stranger's asks `names_own_code` before
anything is imported.
"""

import importlib
import re
from collections.abc import Callable
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
    """Import the function that `setting` names."""
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
