"""The ClientApp: one client's node in a SuperNode, for any method.

flower-supernode --node-config 'name="ward-1" states="/var/lib/ward-1" data="/srv/ward-1"' ...
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...assemble import make_federation, make_setup, model_from
from ...config import TOML_ERRORS, Config, own_code
from ...core import FormatError, SettingError, Settings
from ...core.objective import objective_of
from ...core.settings import received
from .carrier import from_record, to_record
from .client_store import Refused
from .host import SHARES, Hosted, respond
from .own_folder import OwnFolder
from .parcel import Answer, Request

SIMULATED = "simulated"  # data: the client's part of the federation that the run file simulates

app = ClientApp()


@dataclass(frozen=True)
class ClientSettings(Settings):
    """A SuperNode's `--node-config`."""

    name: str  # of the client
    states: str  # the folder where it keeps its private states
    data: str  # the folder of its own data, or SIMULATED
    share: str = "size"  # what the server may know, separated by commas
    trust: bool = False  # whether code may be run that a run file names and that is not concordfl's

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data.strip():
            raise SettingError(
                f"data must be the path of a folder or {SIMULATED!r}, got {received(self.data)}"
            )
        unknown = sorted(self.shares - set(SHARES))
        if unknown or "size" not in self.shares:
            raise SettingError(
                f"share must be size and any of {', '.join(SHARES[1:])}, got {received(self.share)}"
            )

    @property
    def shares(self) -> frozenset[str]:
        return frozenset(part.strip() for part in self.share.split(","))


def perform(message: Message, context: Context) -> Message:
    def load(request: Request) -> Hosted | Answer:
        # Read here, so that settings that are wrong are an answer too.
        return load_client(request, ClientSettings.from_table(context.node_config, "node-config"))

    # What goes wrong must not be raised: Flower would send the exception's text to the server.
    return Message(to_record(respond(_data_of(message), load)), reply_to=message)


app.query()(perform)


def _data_of(message: Message) -> bytes:
    try:
        return from_record(message.content)
    except FormatError:
        return b""  # which is no request


def load_client(request: Request, own: ClientSettings) -> Hosted | Answer:
    """The client of a SuperNode; its answer, as long as it is not agreed how its own examples are
    read.
    """
    settings = read_config(request.config, trust=own.trust)
    if own.data == SIMULATED:
        federation = make_federation(settings).only(own.name)
    else:
        folder = OwnFolder(settings, own.name, Path(own.data), own.shares)
        if not request.orders and request.farewell is None:
            return folder.answer(request)
        federation = folder.federation(request.agreed)
    setup = None
    if request.objective is not None:
        objective = objective_of(*request.objective)
        model = model_from(settings, federation.input_shape, objective)
        setup = make_setup(settings, model, objective)
    secret = settings.run.noise_seed  # where the run gives none, the client has its own
    return Hosted(own.name, federation, setup, Path(own.states), own.shares, secret)


def read_config(text: str, *, trust: bool) -> Config:
    """A run file that came from the server."""
    try:
        table = tomllib.loads(text)
    except TOML_ERRORS:
        raise Refused("the run file must be TOML, got another text") from None
    for setting, name in own_code(table).items():
        if not trust:
            raise Refused(
                "a run file must not name code of its own unless the node's config says "
                f"trust=true, got {setting} = {received(name)}"
            )
    return Config.from_table(table)
