"""The client's side: a node of one client, which may be a new process for every request.

It performs steps of the method that the run is configured with, and the engine's evaluations, and
refuses any other. Its examples, its private state and its secret stay on this machine. Of what goes
wrong here the server is told the kind alone: the text of an exception may hold data.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...core import ClientId, ConcordError, Order, Outcome
from ...core.client import Secret
from ...data import Federation
from ...deploy.received import Received
from ...deploy.receiving import Given, Own, keep_result
from ..evaluate import EVALUATION_STEPS
from ..executors.blocks import LentStates
from ..node import Node
from ..setup import Setup
from ..threads import one_thread
from .client_store import ClientStore, Refused
from .parcel import Answer, Card, Farewell, Request, enclose

# What a client may let the server know, beside what its replies hold.
SHARES = ("size", "labels", "group", "digest")
# The sum of models over clients is of simulations alone: the sum of one client is its own model.
SIMULATION_STEPS = ("add_personal_model",)

log = logging.getLogger(__name__)


class Hosted(NamedTuple):
    """A client as a request finds it."""

    name: ClientId
    federation: Federation  # of this client alone
    setup: Setup | None  # None as long as clients only introduce themselves
    folder: Path  # where it keeps its states
    shares: frozenset[str]
    secret: Secret | None = None  # where a simulation gives it; by default the client makes its own


# An answer of a client that does not know yet how its examples are read.
Load = Callable[[Request], Hosted | Answer]


def respond(data: bytes, load: Load) -> bytes:
    """The answer to a request, whatever that is."""
    try:
        return _respond(Request.from_bytes(data).check(), load).to_bytes()
    except Refused as error:
        log.warning("refused: %s", error)
        return Answer(refusal=str(error)).to_bytes()
    except ConcordError as error:
        log.warning("refused: %s: %s", type(error).__name__, error)
        return Answer(refusal=_only_kind(error)).to_bytes()
    except Exception as error:
        log.exception("failed")
        return Answer(refusal=_only_kind(error)).to_bytes()


def _only_kind(error: Exception) -> str:
    return f"{type(error).__name__}: the client's log says why"


def _respond(request: Request, load: Load) -> Answer:
    hosted = load(request)
    if isinstance(hosted, Answer):
        return hosted
    if not request.orders and request.farewell is None:
        return Answer(card=introduce(hosted))
    _check_orders(request, hosted)
    store = ClientStore(hosted.folder, request.run_id, hosted.name)
    store.begin(request.config, hosted.federation.fingerprint())
    for sha256, publication in request.enclosed.items():
        store.keep_publication(sha256, publication.numpy().tobytes())
    lacks = [sha for sha in request.published.values() if store.publication(sha) is None]
    if lacks:
        return Answer(lacks=tuple(sorted(set(lacks))))
    if request.farewell is not None:
        return _keep_result(request, request.farewell, hosted, store)
    return _perform(request, hosted, store)


def introduce(hosted: Hosted) -> Card:
    (facts,) = hosted.federation.describe()["clients"]
    return Card(
        hosted.name,
        {name: facts[name] for name in ("train", "validation", "test")},
        hosted.federation.preprocessing.to_record(),
        facts.get("labels") if "labels" in hosted.shares else None,
    )


def _check_orders(request: Request, hosted: Hosted) -> None:
    for order in request.orders:
        if order.clients != (hosted.name,):
            raise Refused(f"an order must be for client {hosted.name!r} alone, got another")
        if order.step in SIMULATION_STEPS:
            raise Refused(f"a client must keep its own model, got step {order.step!r}")
    if request.evaluation is not None and request.evaluation.step not in EVALUATION_STEPS:
        raise Refused("what is performed before an order must be an evaluation, got another step")


def _keep_result(
    request: Request, farewell: Farewell, hosted: Hosted, store: ClientStore
) -> Answer:
    """Lay down what the client can predict with from now on."""
    if hosted.setup is None:
        raise Refused("a run's result must come with an objective, got none")
    published = {name: store.publication(sha) or b"" for name, sha in request.published.items()}
    enclosed = enclose(published, published)
    received = Received(hosted.name, farewell.own, farewell.new, enclosed)
    state = store.read(request.base) if request.base else None
    given = Given(request.config, farewell.summary, received)
    own = Own(state, hosted.federation) if farewell.took_part else None
    keep_result(store.result, given, hosted.setup.model, own)
    log.info("the run is over: `concordfl predict %s --data FILE` predicts with it", store.result)
    return Answer(has_kept=True)


def _perform(request: Request, hosted: Hosted, store: ClientStore) -> Answer:
    if hosted.setup is None:
        raise Refused("an order must come with an objective, got none")
    base = store.read(request.base) if request.base else None
    states = LentStates()
    states.lend({} if base is None else {hosted.name: base})
    # The server decides what a failure means for the run.
    setup = replace(hosted.setup, on_error="skip")
    secret = store.secret() if hosted.secret is None else hosted.secret
    node = Node(setup, hosted.federation, states, secret, explains=False)
    for name, sha in request.published.items():
        node.publish(name, store.publication(sha) or b"")
    with one_thread():
        evaluated, outcome = (
            None if order is None else _without_private(node.perform(order), order, hosted)
            for order in (request.evaluation, request.order)
        )
    if not request.version or outcome is None or hosted.name not in outcome.sent:
        return Answer(evaluated=evaluated, outcome=outcome)
    state = states.changed.get(hosted.name, base)
    store.write(request.version, state, request.keep)
    sha256 = "" if state is None else hashlib.sha256(state).hexdigest()
    shared = sha256 if "digest" in hosted.shares else None
    return Answer(evaluated=evaluated, outcome=outcome, state_sha256=shared)


def _without_private(outcome: Outcome, order: Order, hosted: Hosted) -> Outcome:
    """The outcome without what an evaluation says of a client's group, unless it is shared."""
    if order.step != "evaluate" or order.wanted != "replies" or "group" in hosted.shares:
        return outcome
    value = {id: {**reply, "inspect": {}} for id, reply in outcome.value.items()}
    return outcome._replace(value=value)
