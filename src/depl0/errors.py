"""The exceptions of depl0, with messages that a user can act on.

Every error states the expected and the actual value; ``hint`` suggests the next step. The user's model is unchanged
when one of these is raised.
"""

from __future__ import annotations


class Depl0Error(Exception):
    """Base of all errors that depl0 raises on purpose: ``message`` states the problem, ``hint`` the next step.

    Example:
        >>> str(Depl0Error("budget must be at most 1, got 50.", hint="50 % is 0.5."))
        'budget must be at most 1, got 50.\\nhint: 50 % is 0.5.'
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")


class InputError(Depl0Error, ValueError):
    """An argument is invalid."""


class NotInstalledError(InputError, ImportError):
    """A package that only part of depl0 needs is not installed."""


class TraceError(Depl0Error):
    """The network runs, but its graph cannot be recorded."""


class NothingToPruneError(Depl0Error):
    """The analysis found no channel that can be pruned."""


class GateError(Depl0Error, ValueError):
    """Gate values or log α are outside their domain."""


class CertificateError(Depl0Error):
    """The outputs of the pruned model and the gated model differ."""


class FormatError(Depl0Error):
    """A saved folder is damaged, belongs to another network, or was written by a newer version."""


class DataError(Depl0Error):
    """Data files are missing, damaged, or differ from their description."""


class DownloadError(DataError):
    """Data cannot be downloaded: there is no connection, or not enough disk space."""


class TrainingError(Depl0Error):
    """A training cannot continue: the loss is NaN or infinite, or the run was interrupted."""


class RunInterruptedError(TrainingError):
    """The user interrupted the training; this is not a failure."""


class ExportError(Depl0Error):
    """A network cannot be exported to a format, or the exported file computes different outputs."""


class DivergedError(TrainingError):
    """A training produced NaN or infinite values."""
