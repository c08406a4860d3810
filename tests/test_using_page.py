"""The commands in docs/using-the-result.md do what it shows, after its Python."""

import re
import shlex
from pathlib import Path

from command import concordfl

PAGE = (Path(__file__).parents[1] / "docs/using-the-result.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def without_figures(text):
    """Accuracies depend on the default settings, which may become better ones."""
    return re.sub(r"\d+\.\d", "N", text)


def test_the_commands_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec("".join(blocks("python")), {"__name__": "__main__"})
    called = [part.partition("\n") for part in blocks("console")[0].split("$ concordfl ")[1:]]
    assert [command.split()[0] for command, *_ in called] == [
        *("predict", "adapt", "predict", "export"),
    ]
    for command, _, shown in called:
        done = concordfl(tmp_path, *shlex.split(command))
        assert (done.returncode, done.stderr) == (0, ""), command
        assert without_figures(done.stdout) == without_figures(shown)
    assert (tmp_path / "predictions.csv").read_text().startswith("sample,label,prediction,p(ill),")
