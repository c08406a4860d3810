"""The contract of a federated method: one frozen dataclass with client steps and rounds.

A client step is `(client, state, message) -> (state, reply)` and runs where the data are. A round
is `(server, cohort) -> server` and reaches clients only through their steps. State, messages and
replies are trees.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from torch import Tensor, nn

from . import tree
from .client import Client, ClientId, Examples, Scale
from .errors import SettingError
from .model import Model, Params
from .objective import Objective
from .random import Key
from .settings import Settings
from .tree import Tree

if TYPE_CHECKING:
    from .cohort import Cohort

Rows = Mapping[ClientId, Mapping[str, Any]]  # figures of clients
Step = Callable[[Client, Tree, Tree], tuple[Tree, Tree]]
Method = TypeVar("Method", bound=Callable[..., tuple[Tree, Tree]])


def client_step(method: Method) -> Method:
    """Marks a method of an algorithm as a step that a cohort may be asked for."""
    method.is_client_step = True  # type: ignore[attr-defined]
    return method


def step_name(algorithm: "Algorithm", step: Step) -> str:
    """The name under which an order asks for `step`: `train`, or `part.train` of a part."""
    name = getattr(step, "__name__", repr(step))
    if not getattr(step, "is_client_step", False):
        raise SettingError(f"a cohort can only be asked for a @client_step, got {name!r}")
    owner = getattr(step, "__self__", None)
    if owner == algorithm:
        return name
    for part, method in algorithm.parts().items():
        if owner == method:
            return f"{part}.{name}"
    raise SettingError(f"a cohort can only be asked for steps of its method, got {name!r}")


def find_step(algorithm: "Algorithm", name: str) -> Step:
    """The step that an order names; anything that is no client step is refused."""
    part, dot, step = name.rpartition(".")
    owner = algorithm.parts().get(part) if dot else algorithm
    found = getattr(owner, step, None) if owner is not None else None
    if not getattr(found, "is_client_step", False):
        raise SettingError(f"an order must name a client step of the method, got {name!r}")
    return cast(Step, found)


class Task(NamedTuple):
    """What the server knows of the problem."""

    model: Model
    objective: Objective
    input_shape: tuple[int, ...]
    scale: Scale | None = None  # of images that are standardised

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 where targets are no classes."""
        return self.objective.num_classes

    def random_inputs(self, count: int, key: Key) -> Tensor:
        """Inputs that say nothing of any class.

        Pixels are uniform, and standardised as the clients' are; rows of features are normal.
        """
        shape = (count, *self.input_shape)
        if len(shape) != 4:
            return key.normal(shape).float()
        pixels = key.uniform(shape).float()
        return pixels if self.scale is None else (pixels - self.scale.mean) / self.scale.deviation


class Stage(NamedTuple):
    """A part of a method's schedule: `play` is called once per round."""

    name: str
    play: Callable[[Tree, "Cohort"], Tree]
    rounds: int | None = None  # None: as many as the run has
    everyone: bool = False  # all clients take part
    # where the stage's own count of rounds begins: random keys and the learning rate depend on it
    first_round: int = 0
    prepares: bool = False  # there is nothing yet to predict with, so the stage is not evaluated
    # in a stage for everyone: whoever does not answer is left out until it has answered in one
    required: bool = True
    trains: bool = True  # whether its rounds are training rounds, which drifting data are timed by
    when_sampled: bool = False  # only played if the run's rounds do not ask all clients


class Likelihood(NamedTuple):
    """How likely samples are: (N,) log p(x), and log p(y|x) where the method knows of labels."""

    log_x: Tensor
    log_y: Tensor | None

    @property
    def joint(self) -> Tensor:
        return self.log_x if self.log_y is None else self.log_x + self.log_y

    def by_name(self) -> dict[str, Tensor]:
        """What samples may be judged by: `log_x` where labels are unknown, else `joint`."""
        return {"log_x": self.log_x, "joint": self.joint}


class Degenerate(NamedTuple):
    """That a method is no more than another one in a run."""

    into: str  # the other method's name
    because: str


class About(NamedTuple):
    """What `concordfl list algorithms` tells of a method."""

    title: str
    paper: str
    year: int
    travels: str
    private: str
    cost: str  # of a round, relative to FedAvg


@dataclass(frozen=True)
class Algorithm(Settings, ABC):
    """A federated method. Its fields are its hyper-parameters."""

    about: ClassVar[About]
    personal: ClassVar[bool] = False  # whether clients predict with something of their own
    # whether there is a rule for clients that were not in training
    accepts_new_clients: ClassVar[bool] = True
    adapts: ClassVar[str] = ""  # what a new client makes of its examples, in words
    # entries of a client's state that only repeat what it has sent
    public_state: ClassVar[frozenset[str]] = frozenset()
    scores_samples: ClassVar[bool] = False  # whether it can say how likely a sample is
    classifies: ClassVar[bool] = True  # whether it predicts labels
    averages: ClassVar[bool] = True  # whether its rounds' new models are means of the clients'
    # whether it takes clients' changes for sums of gradients, which they are not with Adam
    needs_sgd: ClassVar[bool] = False
    chooses: ClassVar[bool] = False  # whether clients choose what their replies are about
    # whether all training data are pooled first: no federation, for comparison only
    pools_data: ClassVar[bool] = False
    # whether its clients spend their time in `fit` on their own loss, in `losses` and `logits`,
    # which can be computed for many of them at once; every class says it for itself
    vectorizes: ClassVar[bool] = False
    # the kinds of objectives that it can learn; a method that only needs a loss supports ANY_KIND
    supports: ClassVar[frozenset[str]] = frozenset({"classification"})

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        """The network to train; methods that need further layers add them here.

        `num_classes` is the number of outputs, where targets are no classes.
        """
        return module

    @abstractmethod
    def init_server(self, task: Task, seed: int) -> Tree:
        """The server's state before the first round."""

    def init_client(self, client: Client, message: Tree) -> Tree:
        """A client's private state, made at first contact.

        It is asked for again where it is to be known whether a step has changed it: the same state
        must come out, from a message that steps leave as it is.
        """
        return {}

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        """The schedule of a run that is asked for `rounds`; the model says what a round sends."""
        return (Stage("train", self.round),)

    def round(self, server: Tree, cohort: "Cohort") -> Tree:
        """One round of the only stage; methods with several stages override `stages` instead."""
        raise SettingError(f"{type(self).__name__} must define `round` or `stages`")

    def parts(self) -> Mapping[str, "Algorithm"]:
        """Methods inside this one whose steps it asks for."""
        return {}

    def ready(self, server: Tree) -> bool:
        """Whether there is something to predict with, as after a stage that prepares."""
        return True

    def message(self, server: Tree, client_id: ClientId | None) -> Tree:
        """What a client predicts with; None stands for a client that was not in training."""
        return server

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        """The state to predict with; it is used once and then forgotten.

        `new` is a client that was not in training; `client.has_state` says whether a participant
        has ever trained.
        """
        return state

    def tune(self, client: Client, state: Tree, message: Tree, epochs: int) -> Tree:
        """What a new client makes of the message by training it for `epochs` (`run.tune_new`).

        A method with another rule for new clients leaves the message as it is.
        """
        return message

    @property
    def tunes_new(self) -> bool:
        """Whether new clients tune at all."""
        return type(self).tune is not Algorithm.tune

    def unadapted(self, client: Client, message: Tree) -> Tree | None:
        """The state to predict with for somebody who has no examples; `client` is empty.

        None where there is nothing to predict with before a client has adapted.
        """
        return None if self.personal else self.init_client(client, message)

    def parameters(self, client: Client, state: Tree, message: Tree) -> Params:
        """Of the network that a client predicts with, where it predicts with one network."""
        params: Params = message
        return params

    def personal_model(self, client: Client, state: Tree) -> Params | None:
        """The whole model that a client has trained for itself, of methods that give it one; None
        where this client has none yet.

        For evaluation only: new clients are also scored with the mean of these models.
        """
        return None

    @property
    def has_personal_models(self) -> bool:
        """Whether clients have whole models of their own."""
        return type(self).personal_model is not Algorithm.personal_model

    def predict(self, client: Client, state: Tree, message: Tree, examples: Examples) -> Tensor:
        """(N, Y) class probabilities, or what else the objective says: those of the network, unless
        a method has another rule.
        """
        return client.predictions(self.parameters(client, state, message), examples)

    def module(self, client: Client, state: Tree, message: Tree) -> nn.Module:
        """What `predict` computes, as a module of inputs that needs nothing of ours when called.

        A method with a rule of its own in `predict` has one here too.
        """
        if type(self).predict is not Algorithm.predict:
            raise SettingError(
                f"{type(self).__name__} must define `module`, as it defines `predict`, to be given "
                "away as a module, got none"
            )
        return client.module(self.parameters(client, state, message))

    def likelihood(
        self, client: Client, state: Tree | None, message: Tree, examples: Examples
    ) -> Likelihood:
        """How likely examples are at a client in `state`, or, if that is None, anywhere.

        Of methods with `scores_samples`.
        """
        raise SettingError(f"{type(self).__name__} does not model p(x)")

    def deployed(self, server: Tree) -> dict[str, Tensor]:
        """What is saved as the run's model: by default all tensors of the server's state, by their
        dotted names.
        """
        return {
            name: leaf for name, leaf in tree.flatten(server).items() if isinstance(leaf, Tensor)
        }

    def describe(self, server: Tree) -> dict[str, Any]:
        """For the records only: what is worth knowing of the server's state."""
        return {}

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        """For the records only: what is worth knowing of a client, such as `group` or `weights`."""
        return {}

    def degenerate(self, model: Model, server: Tree, rows: Rows) -> Degenerate | None:
        """Whether the method was no more than another one in a run: a warning of the run.

        `rows` are the participants' figures in the last round, with what `inspect` says of them.
        """
        return None

    def rounds_rule(self) -> str:
        """Why its rounds are not those that a run asks for; for methods with several stages."""
        return ""

    def left_out(self, task: Task, server: Tree) -> str:
        """What of the method a run has not done, and why: a warning of the run."""
        return ""
