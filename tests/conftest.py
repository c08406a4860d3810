"""One torch thread, as everywhere: the tests compare bits."""

import signal

import torch

torch.set_num_threads(1)

# A suite that is started in the background, or by nohup, ignores these signals, and so would all
# that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
