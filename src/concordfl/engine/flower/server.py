"""The ServerApp: a run whose clients are SuperNodes, into a run folder.

[tool.flwr.app.config]
run = "..."       # the run file's text; or file = "...", its path on the server
out = "..."       # the run's folder on the server; a run that is there is gone on with
clients = 4       # how many must be there before it begins
"""

import logging
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...assemble import make_setup, model_from, network_identity
from ...by_name import require_method
from ...config import TOML_ERRORS, Config, read_table
from ...core import (
    Algorithm,
    ClientId,
    ConcordError,
    Count,
    Positive,
    SettingError,
    Settings,
    tree,
)
from ...deploy.saving import write_models
from ...runner import DataFacts, summarise
from ..checkpoint import Progress, check_identity
from ..experiment import Event, Experiment, is_identical
from ..files import to_json
from ..plan import Plan
from ..records import RunFolder
from ..setup import Setup
from .agreement import Inquiry, agree
from .carrier import GridCarrier
from .executor import RemoteNodes
from .meeting import Carrier, Clock, Meeting, Run
from .members import Members
from .parcel import Card, Farewell

REASON = "clients are SuperNodes"
OF_SIMULATIONS = ("executor", "workers", "ray_address", "client_states")  # settings of `run`

log = logging.getLogger("flwr")  # which Flower shows
app = ServerApp()


@dataclass(frozen=True)
class ServerSettings(Settings):
    """The run config of the Flower app."""

    out: str
    clients: Count
    run: str = ""
    file: str = ""
    timeout: Positive = 600.0  # seconds for an order; who has not answered then is left out
    wait: Positive = 600.0  # seconds for clients to come, before the first order

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.run) == bool(self.file):
            raise SettingError("one of run and file must be given, got both or none")

    def read(self) -> Config:
        """The settings of the run."""
        if self.file:
            return Config.from_table(read_table(Path(self.file)))
        try:
            return Config.from_table(tomllib.loads(self.run))
        except TOML_ERRORS as error:
            raise SettingError(f"run must be the text of a run file: {error}") from None


def main(grid: Grid, context: Context) -> None:
    given = ServerSettings.from_table(context.run_config, "run-config")
    serve(GridCarrier(grid), given)


app.main()(main)


def serve(carrier: Carrier, given: ServerSettings, clock: Clock | None = None) -> dict[str, Any]:
    """Play the run to its end; its summary."""
    settings, out = given.read(), Path(given.out)
    require_federable(settings)
    _say_what_is_unused(settings)
    begun = (out / "config.toml").exists()
    opened = RunFolder.open(out) if begun else RunFolder.create(out, settings.to_toml())
    with opened as folder:
        if folder.read_config() != settings.to_toml():
            raise SettingError(f"{out} must be gone on with by the run file that it began with")
        return _play(carrier, given, settings, folder, clock or Clock())


def _say_what_is_unused(settings: Config) -> None:
    """The run file may be a simulation's too, which says how that is computed."""
    for name in OF_SIMULATIONS:
        value = getattr(settings.run, name)
        if value != getattr(Plan, name):
            log.warning("run.%s = %r has no effect: %s", name, value, REASON)


def require_federable(settings: Config) -> None:
    """Refuse what only a simulation can do."""
    require_method(settings.algorithm)
    if settings.algorithm.pools_data:
        kind = type(settings.algorithm).__name__
        raise SettingError(f"clients' data must stay with them, got {kind}, which pools them")


def _play(
    carrier: Carrier, given: ServerSettings, settings: Config, folder: RunFolder, clock: Clock
) -> dict[str, Any]:
    recorded, summary = folder.read_federation(), folder.read_summary()
    if summary is None:
        folder.show_running()
    known = None if recorded is None else Members.from_facts(recorded)
    run = Run(secrets.token_hex(16) if known is None else known.run_id, settings.to_toml())
    meeting = Meeting(carrier, run, given.timeout)
    members = _begin(carrier, meeting, given, settings, folder, clock) if known is None else known
    setup = _make_setup(settings, members)
    identity = {"config": folder.config_digest(), **network_identity(settings, setup.model)}
    if recorded is None:
        folder.write_federation(members.to_facts(identity, settings.to_table()["data"]))
        folder.write_executor(_choice(setup))
    else:
        check_identity(folder.path, recorded["identity"], identity)
        _await(meeting, members, given, clock, is_over=summary is not None)
    run = run._replace(objective=members.objective_table, agreed=members.agreed)
    keep = settings.run.keep_checkpoints
    executor = RemoteNodes(carrier, setup, run, meeting, given.timeout, keep, members.cards, clock)
    roster = members.roster(setup)
    experiment = Experiment(setup, roster, settings.run, executor, folder, _say, identity)
    progress = experiment.restore()
    if summary is None:
        experiment.run(progress)
        data = DataFacts(members.preprocessing, members.without_test)
        summary = summarise(settings, experiment, progress, REASON, data)
        write_models(folder, settings.algorithm, progress, executor.personal_parts())
        folder.write_summary(summary)
    _deliver(executor, settings.algorithm, progress, summary)
    return summary


def _deliver(
    executor: RemoteNodes, algorithm: Algorithm, progress: Progress, summary: dict[str, Any]
) -> None:
    """Give everybody who is there what came of the run. Who is not has only to be there when the
    same app is submitted again.
    """
    executor.meeting.look()
    there = executor.meeting.present()
    new = algorithm.message(progress.server, None) if algorithm.accepts_new_clients else None
    told = to_json({**summary, "failures": []})  # they name other clients
    farewells = {}
    for id in there:
        took_part = id in executor.roster
        own = algorithm.message(progress.server, id) if took_part else None
        own = None if new is not None and own is not None and is_identical(own, new) else own
        farewells[id] = Farewell(told, tree.normal(own), tree.normal(new), took_part)
    missed = executor.deliver(farewells)
    kept = [id for id in there if id not in missed]
    log.info("the result was given to %s", ", ".join(map(repr, kept)) or "nobody")
    for id in sorted({*executor.roster, *there} - set(kept)):
        why = missed[id].detail if id in missed else "its node is not there"
        log.warning("the result was not given to %r: %s", id, why)


def _begin(
    carrier: Carrier,
    meeting: Meeting,
    given: ServerSettings,
    settings: Config,
    folder: RunFolder,
    clock: Clock,
) -> Members:
    """Those who are there, agreed on how examples are read; why they are not is recorded."""
    try:
        cards = _gather(meeting, given, clock)
        if all(card.look is None for card in cards.values()):
            return Members.agree(meeting.run.id, cards, settings)
        return agree(Inquiry(carrier, meeting, cards, clock), settings, given.timeout)
    except ConcordError as error:
        folder.write_refusal(str(error))
        raise


def _gather(meeting: Meeting, given: ServerSettings, clock: Clock) -> dict[ClientId, Card]:
    """Those who are there as soon as they are as many as were asked for."""
    cards = meeting.wait_for(lambda present: len(present) >= given.clients, given.wait, clock)
    if len(cards) < given.clients:
        refusals = "".join(f"; one takes no part: {why}" for why in meeting.refusals.values())
        raise SettingError(
            f"{given.clients} clients must be there within {given.wait:g} s, got {len(cards)}: "
            f"{', '.join(map(repr, cards)) or 'nobody'}{refusals}"
        )
    return cards


def _await(
    meeting: Meeting, members: Members, given: ServerSettings, clock: Clock, *, is_over: bool
) -> None:
    """Let those who were there come back; who does not is missing, as in any round. Of a run that
    `is_over` only those matter who are there.
    """
    if is_over:
        meeting.wait_for(lambda _: meeting.is_settled, given.wait, clock, is_start=False)
        return
    there = meeting.wait_for(
        lambda now: members.cards.keys() <= now.keys(), given.wait, clock, is_start=False
    )
    if not members.cards.keys() & there.keys():
        raise SettingError(
            f"at least one client of the run must be back within {given.wait:g} s, got none of "
            f"{', '.join(map(repr, members.cards))}"
        )


def _make_setup(settings: Config, members: Members) -> Setup:
    model = model_from(settings, members.preprocessing.input_shape, members.objective)
    return make_setup(settings, model, members.objective)


def _choice(setup: Setup) -> dict[str, Any]:
    device = setup.model.device.type
    return {"name": RemoteNodes.name, "workers": 1, "reason": REASON, "device": device}


def _say(event: Event) -> None:
    local = (event.record or {}).get("local", {})
    figures = ", ".join(
        f"{name} {local[name]:.3f}" for name in ("accuracy", "loss") if name in local
    )
    log.info("round %s of %s: %s", event.turn.round, event.rounds, figures or event.turn.stage.name)
