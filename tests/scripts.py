"""Scripts of the repository that no package holds, as modules."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_script(path):
    """The module of a file below the repository's root."""
    name = "script_" + Path(path).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
