"""One torch thread, as everywhere: the tests compare bits. Drawn cases are always the same ones."""

import os
import signal

import hypothesis
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "suite",
    max_examples=int(os.environ.get("CONCORDFL_EXAMPLES", "30")),
    derandomize=True,
    deadline=None,  # a busy machine is no bug
)
hypothesis.settings.load_profile("suite")

# A suite that is started in the background, or by nohup, ignores these signals, and so would all
# that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
