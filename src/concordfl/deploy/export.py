"""What a client predicts with as a file: for whom concordfl is not installed.

    model.safetensors    the parameters by their names in `Result.model`
    model.onnx           a graph for any ONNX runtime: `examples` in, `probabilities` (or
                         `predictions` of values) out
    model.pt2            a program that `torch.export.load` reads: needs torch alone

All of them carry the classes in the order of the probabilities and the names of the features.
"""

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import ClientId, SettingError
from ..data.text import reason
from ..engine.files import write_atomically
from ..engine.sealed_tensors import join_header, split_header
from .finished import FinishedRun
from .module import deployed_model, example_input

FORMAT = 1  # of what is said of the model
ONNX_PACKAGES = ("onnx", "onnxscript")


def write(run: FinishedRun, path: Path, client: ClientId | None) -> Path:
    """The model of a client, or the one for somebody of whom nothing is known, as the file that its
    ending says.
    """
    ending = path.suffix.lower()
    if ending not in WRITERS:
        raise SettingError(f"a model must be exported as {', '.join(WRITERS)}, got {path}")
    if ending == ".onnx":
        _require_onnx()
    client = run.own_client if client is None else client
    module = deployed_model(run.predictor_of(client), run.preprocessing)
    example = example_input(run.preprocessing)
    facts = {
        "algorithm": run.name,
        "client": client,
        "predicts": run.objective.kind,
        **run.preprocessing.to_record(),
    }
    data = WRITERS[ending](module, example, facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return path


def _to_safetensors(module: nn.Module, _example: Tensor, facts: dict[str, Any]) -> bytes:
    from safetensors.torch import save

    tensors = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
    # Others' loaders look for `format`, which says by which library tensors were saved.
    header, data = split_header(save(tensors, {"format": "pt"}))
    header["__metadata__"] |= _metadata(facts)
    return join_header(header, data)


def _to_onnx(module: nn.Module, example: Tensor, facts: dict[str, Any]) -> bytes:
    with _exporting("ONNX"):
        program = torch.onnx.export(
            module,
            (example,),
            input_names=["examples"],
            output_names=["probabilities" if facts["predicts"] != "regression" else "predictions"],
            dynamic_shapes=({0: torch.export.Dim("examples")},),
            dynamo=True,
            verbose=False,
        )
        if program is None:
            raise SettingError("torch gave no ONNX program")
        program.model.metadata_props.update(_metadata(facts))
        data: bytes = program.model_proto.SerializeToString()
    return data


def _to_pt2(module: nn.Module, example: Tensor, facts: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with _exporting("a torch program"):
        dynamic = ({0: torch.export.Dim("examples")},)
        program = torch.export.export(module, (example,), dynamic_shapes=dynamic)
        torch.export.save(program, buffer, extra_files=_metadata(facts))
    return buffer.getvalue()


WRITERS: dict[str, Callable[[nn.Module, Tensor, dict[str, Any]], bytes]] = {
    ".safetensors": _to_safetensors,
    ".onnx": _to_onnx,
    ".pt2": _to_pt2,
}


def _metadata(facts: dict[str, Any]) -> dict[str, str]:
    """Values as JSON, in texts as files can carry them."""
    known = {"concordfl_format": FORMAT, **facts}
    return {name: json.dumps(value) for name, value in known.items()}


def _require_onnx() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingError(
            f"an .onnx file needs {' and '.join(missing)}: `pip install concordfl[export]`"
        )


@contextmanager
def _exporting(what: str) -> Iterator[None]:
    """Without what torch says to its own developers; a network that it cannot turn into a graph is
    one line.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SettingError:
        raise
    except Exception as error:  # torch raises all kinds
        raise SettingError(
            f"the network must be one that torch can turn into {what}, got {reason(error)}"
        ) from None
    finally:
        logging.disable(level)
