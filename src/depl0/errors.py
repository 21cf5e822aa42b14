"""What can go wrong, in words a user can act on.

Every error says what was wanted and what was found; ``hint`` says what to do next. Nothing in the user's model has been
changed when one of these is raised.
"""

from __future__ import annotations


class Depl0Error(Exception):
    """Base of all errors that depl0 raises on purpose: ``message`` says what is wrong, ``hint`` what to do next.

    Example:
        >>> str(Depl0Error("budget must be at most 1, got 50.", hint="50 % is 0.5."))
        'budget must be at most 1, got 50.\\nhint: 50 % is 0.5.'
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")


class InputError(Depl0Error, ValueError):
    """An argument is not what it has to be."""


class NotInstalledError(InputError, ImportError):
    """A package is missing that only part of depl0 needs."""


class TraceError(Depl0Error):
    """The network runs, but its graph cannot be recorded."""


class NothingToPruneError(Depl0Error):
    """The analysis proved no channel prunable."""


class GateError(Depl0Error, ValueError):
    """Gate values or log alpha are out of their domain."""


class CertificateError(Depl0Error):
    """The compact network does not compute what the gated network computes."""


class FormatError(Depl0Error):
    """A saved folder is damaged, of another network, or of a newer version."""


class DataError(Depl0Error):
    """Data files are missing, damaged, or not what they were said to be."""


class DownloadError(DataError):
    """Data cannot be downloaded: there is no connection, or no room."""


class TrainingError(Depl0Error):
    """A training cannot go on: the loss is no number any more, or the run was interrupted."""


class RunInterruptedError(TrainingError):
    """Somebody asked the training to stop; nothing is wrong with it."""


class ExportError(Depl0Error):
    """A network cannot be written in a format, or the file that was written does not compute what it computes."""


class FixedBatchError(ExportError):
    """A network takes batches of one size only."""


class DivergedError(TrainingError):
    """A training produced NaN or infinite values."""
