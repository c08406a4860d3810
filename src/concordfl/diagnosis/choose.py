"""What `auto` stands for in a run: its clients are diagnosed, and the method recommended first that
its network, training and aggregation allow is taken.
"""

from dataclasses import replace
from typing import NamedTuple

from ..assemble import make_model, make_objective, make_setup
from ..by_name import method_from
from ..config import Config
from ..core import Algorithm, SettingError
from ..data import Federation
from ..engine.roster import Roster
from .auto import Auto, described
from .method import Diagnose
from .run import Chosen, Diagnosis, diagnose_clients, load_clients


class Choice(NamedTuple):
    settings: Config  # with the method in the place of `auto`
    diagnosis: Diagnosis  # which says what was chosen, and why


def choose_method(settings: Config, auto: Auto) -> Choice:
    """Diagnose the training examples of a run whose method is `auto`, and choose one."""
    try:
        clients = load_clients(settings)
    except SettingError as error:
        raise SettingError(f"auto cannot choose a method: {error}") from None
    found = diagnose_clients(clients, settings, Diagnose())
    advice = found.recommendation[auto.purpose]
    passed_over: list[str] = []
    for one in advice["methods"]:
        method = method_from({"name": one["method"], **one["settings"]}, "algorithm")
        problem = _problem(settings, method, clients.federation)
        if problem is not None:
            passed_over.append(f"{one['method']}: {problem}")
            continue
        chosen: Chosen = {
            "purpose": auto.purpose,
            "method": one["method"],
            "settings": one["settings"],
            "because": advice["because"],
            "passed_over": passed_over,
        }
        complete = Diagnosis({**found.content, "chosen": chosen})
        return Choice(replace(settings, algorithm=method), complete)
    names = ", ".join(described(one["method"], one["settings"]) for one in advice["methods"])
    raise SettingError(
        "auto needs a method that can be run with these settings, got none among "
        f"{names}: {'; '.join(passed_over)}"
    )


def _problem(settings: Config, method: Algorithm, federation: Federation) -> str | None:
    """Why a method cannot be run with the rest of the settings; None where it can."""
    own = replace(settings, algorithm=method)
    try:
        model = make_model(own, federation)
        setup = make_setup(own, model, make_objective(own, federation))
        method.init_server(Roster.from_federation(federation, setup).task, settings.run.seed)
    except SettingError as error:
        return str(error)
    return None
