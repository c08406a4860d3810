"""`concordfl adapt`."""

from ..deploy import newcomer
from ..report.tables import percent
from .options import DataOption, FolderArgument, TrustOption
from .terminal import say


def adapt(folder: FolderArgument, data: DataOption, trust: TrustOption = False) -> None:
    """Let a new client join a finished run: it adapts to half of its examples and is tested on the
    rest.
    """
    answer = newcomer.adapt(folder, data, trust=trust)
    tested = answer["tested_on"]
    figures = [f"accuracy {percent(tested['accuracy'])}"] if "accuracy" in tested else []
    if "log_likelihood" in answer:
        figures += [f"log-likelihood {answer['log_likelihood']['own_weights']:.3f}"]
    say(
        f"{answer['client']}: {', '.join(figures)} on {tested['examples']} examples, after "
        f"adapting to {answer['adapted_on']} others",
        f"Written to {newcomer.answer_file(folder, answer['client'])}",
    )
