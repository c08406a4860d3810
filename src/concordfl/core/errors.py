"""The exceptions of concordfl.

ConcordError              what concordfl refuses or cannot do; the command line prints one line
├── SettingError          a setting breaks its rule: `mu must be >= 0, got -1.0`
├── DataError             data are missing, damaged, or do not fit the rule they must keep
├── FormatError           bytes or a file are damaged, or of another format
│   └── OtherFormatError  ... because another version of concordfl has written them
├── CheckpointError       a run directory cannot be read, or holds another run
├── ClientStepError       a client's step failed; names client, stage, step and round
├── WorkerError           worker processes keep dying
└── NoReplies             too few clients of a cohort answered; the engine voids the round
"""


class ConcordError(Exception):
    """Base of every error that concordfl raises on purpose."""


class SettingError(ConcordError):
    """A setting breaks its rule."""


class DataError(ConcordError):
    """Data are missing, damaged, or do not fit the rule they must keep."""


class FormatError(ConcordError):
    """Bytes or a file are damaged, or of another format."""


class OtherFormatError(FormatError):
    """A file was written by another version of concordfl: it is whole, but cannot be read."""


class CheckpointError(ConcordError):
    """A run directory cannot be read, or holds another run."""


class ClientStepError(ConcordError):
    """A client's step failed."""


class WorkerError(ConcordError):
    """Worker processes keep dying."""


class NoReplies(ConcordError):  # noqa: N818 - an event of the loop, not a fault
    """Fewer clients of a cohort answered than must."""
