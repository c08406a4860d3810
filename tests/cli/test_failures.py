"""What ends a command early is a line and an exit code; text is printed as it is."""

import errno
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.table import Table

from command import concordfl
from concordfl import SettingError, runner
from concordfl.cli import progress, terminal
from concordfl.cli.failures import finish
from concordfl.cli.progress import show_progress
from concordfl.cli.signals import Stopped, heed_signals, quiet_interrupts, raised_signals
from concordfl.cli.streams import prepare_streams
from concordfl.data import dataset

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "COLUMNS": "120"}
RUN = """
[run]
rounds = 2

[data]
name = "digits"
limit = 200

[scenario]
clients = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def failing(error):
    """A command that raises `error`."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

    @app.command()
    def command():
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SettingError("mu must be >= 0\ngot -1"), "mu must be >= 0\\ngot -1"),
        (
            OSError(errno.EROFS, "Read-only file system", "/proc/x [/y]"),
            "the operating system refused: Read-only file system: /proc/x [/y]",
        ),
        (PermissionError(errno.EACCES, "Permission denied"), "refused: Permission denied"),
        (OSError("odd"), "the operating system refused: odd"),
        (MemoryError(), "the run must fit into memory, got too little of it"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes\nmore"),
            "must fit into memory, got too little of it: DefaultCPUAllocator",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_be_expected_is_one_line(error, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["concordfl"])
    with pytest.raises(SystemExit, match="2"):
        finish(failing(error))
    text = capsys.readouterr().err
    assert text.startswith("concordfl: ")
    assert message in text
    assert text.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["concordfl"])
    with pytest.raises(IndexError):
        finish(failing(IndexError()))


def test_ctrl_c_before_a_run_is_silent(folder, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("concordfl.config.read_table", interrupted)
    assert concordfl(folder, "run", "run.toml") == (130, "", "")


def test_folders_that_cannot_be_written(folder):
    (folder / "file").write_text("")
    for out in ("/proc/none/out", "file/out", "n" * 300):
        done = concordfl(folder, "run", "run.toml", "--out", out)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith("concordfl: ")


@pytest.mark.parametrize("name", ["[/x]", "run [lr=0.1]", ":smile: [red]", "a\x1b[31mb\nc"])
def test_names_are_printed_as_they_are(folder, name):
    done = concordfl(folder, "run", "run.toml", "--out", name)
    assert done.returncode == 0, done.stderr
    written_out = name.replace("\x1b", "\\x1b").replace("\n", "\\n")
    assert done.stdout.splitlines()[-1] == f"Results are in {written_out}"
    (folder / f"{name.replace('/', '-')}.toml").write_text(RUN)
    done = concordfl(folder, "resume", name)
    assert done.returncode == 0, done.stderr
    missing = concordfl(folder, "resume", f"{name} none")
    assert missing.stderr.endswith(f"got {written_out} none without one\n")


def test_tables_and_bars_take_any_text():
    out = io.StringIO()
    console = terminal.PlainConsole(file=out, force_terminal=True, width=60)
    table = Table("head [/x]", title="[/title]", caption="[b]\x1b]0;c\x07")
    table.add_row("cell [/x] \x1b[2J")
    console.print(table)
    for text in ("head [/x]", "[/title]", "[b]\\x1b]0;c\\x07", "cell [/x] \\x1b[2J"):
        assert text in out.getvalue()
    with show_progress(console, "[/x] \x1b[2J{task}"):
        pass
    assert "[/x] \\x1b[2J{task}" in out.getvalue()


def test_what_would_steer_a_terminal_is_written_out():
    assert terminal.printable("ä 名 ✓ [b]") == "ä 名 ✓ [b]"
    assert terminal.printable("\r\t\x9b\udcff\u202e\u2028") == "\\r\\t\\x9b\\udcff\\u202e\\u2028"


def test_streams_that_are_closed_or_narrow(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    monkeypatch.setattr(sys, "stderr", None)
    prepare_streams()
    print("± ─", file=sys.stdout, flush=True)
    print("nobody reads this", file=sys.stderr)
    sys.stderr.close()
    assert narrow.buffer.getvalue() == b"\\xb1 \\u2500\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes of Unix")
def test_the_real_command_with_a_reader_that_leaves(folder):
    """An ASCII-only terminal and no home, too: one interpreter is started for all of it."""
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "HOME"}
    with subprocess.Popen(
        [sys.executable, "-m", "concordfl", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONIOENCODING": "ascii"},
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, b"")


def test_a_user_without_a_home(folder, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("XDG_CACHE_HOME", "CONCORDFL_DATA"):
        monkeypatch.delenv(name, raising=False)
    assert dataset.data_folders("mnist") == [Path("/usr/share/datasets/mnist")]
    assert concordfl(folder, "data", "list").returncode == 0
    refused = concordfl(folder, "run", "run.toml", "--set", "data={name='tiny-imagenet'}")
    assert refused.returncode == 2
    assert "'tiny-imagenet' must be on this machine" in refused.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_says_how_to_go_on(folder, monkeypatch, number, code):
    def stopped(*_, **__):
        signal.raise_signal(number)
        raise AssertionError("the signal must have been raised")

    monkeypatch.setattr(runner, "run", stopped)
    done = concordfl(folder, "run", "run.toml", "--out", "a b")
    assert done == (
        code,
        "",
        "concordfl: stopped; `concordfl resume 'a b'` goes on from the last checkpoint\n",
    )
    assert signal.getsignal(number) is signal.SIG_DFL


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raised_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    with pytest.raises(Stopped), raised_signals():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_lost_is_raised_again_after_the_round(number, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Deaf:
        def __del__(self):
            signal.raise_signal(number)  # Python ignores what is raised in a destructor

    try:
        with raised_signals():
            Deaf()
            with pytest.raises(KeyboardInterrupt):
                heed_signals()
        heed_signals()  # what came before does not end what comes later
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_progress_heeds_signals(monkeypatch):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "heed_signals", stop)
    for is_terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=is_terminal)
        for shown in (progress.show_progress(console, "x"), progress.show_steps(console, "x", 2)):
            with shown as observe, pytest.raises(KeyboardInterrupt):
                observe(None)


def test_ctrl_c_while_importing(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with quiet_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [130]


def test_little_is_imported_before_ctrl_c_is_answered():
    code = (
        "import sys, concordfl.cli; sys.exit(bool({'torch', 'typer', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT).returncode == 0


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_sigterm_ends_the_worker_processes_too(folder):
    arguments = ("--executor", "processes", "--set", "run.workers=2", "--set", "run.rounds=100000")
    with subprocess.Popen(
        [sys.executable, "-m", "concordfl", "run", "run.toml", "--out", "out", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        process.stdout.readline()  # the first evaluated round
        workers = children(process.pid)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert errors == "concordfl: stopped; `concordfl resume out` goes on from the last checkpoint\n"
    assert len(workers) >= 2
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived its run"
        time.sleep(0.05)


def children(parent):
    lines = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    fields = [line.rpartition(")")[2].split() for line in lines]
    ids = [line.partition(" ")[0] for line in lines]
    return [id for id, field in zip(ids, fields, strict=True) if int(field[1]) == parent]


def test_what_came_in_the_way_of_the_figures_is_said():
    from concordfl.report.notes import notes_on

    failure = {"client": "a", "stage": "s", "step": "train", "round": 2, "reason": "failed"}
    summary = {
        "missing": {"failed": 1, "dropped out": 3},
        "failures": [{**failure, "detail": "ValueError: bad luck"}],
        "void_rounds": 4,
        "clients_without_test": 2,
        "damaged_checkpoints": ["manifest-00000003.json: it is damaged"],
    }
    assert list(notes_on(summary)) == [
        "Replies that do not count: 3 dropped out, 1 failed",
        "The first of those with a reason: client 'a', step 'train', round 2: ValueError: bad luck",
        "4 rounds were void: fewer answered than run.min_replies asks",
        "2 clients have no test examples, and no figures",
        "A checkpoint was damaged, and the one before it was used: "
        "manifest-00000003.json: it is damaged",
    ]
    nothing = {
        **dict.fromkeys(("missing", "failures", "damaged_checkpoints"), ()),
        **dict.fromkeys(("void_rounds", "clients_without_test"), 0),
        "missing": {},
    }
    assert list(notes_on(nothing)) == []
