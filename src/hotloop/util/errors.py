"""The catalogue of errors.

Every message says what was found, where, and what to do. The command line prints the message as
one sentence and exits with `exit_code`; nothing else in hotloop calls `sys.exit`.
"""


class HotloopError(Exception):
    """Base of everything hotloop raises on purpose."""

    exit_code = 1


class UsageError(HotloopError):
    """A call or a command whose arguments do not fit together."""

    exit_code = 2


class SettingError(UsageError):
    """An environment variable hotloop does not know, or a value it cannot use."""


class ModelFileError(HotloopError):
    """A model file that is missing, damaged or not what its header says."""

    exit_code = 3


class UnsupportedError(HotloopError):
    """A well-formed file that asks for something hotloop does not have (yet)."""

    exit_code = 4


class DownloadError(HotloopError):
    """A model that could not be fetched or whose checksum is wrong."""

    exit_code = 5


class ContextError(HotloopError):
    """A prompt or a generation that does not fit in the context."""

    exit_code = 6


class OutOfMemoryError(HotloopError):
    """Not enough memory for the weights, the KV cache or the work space."""

    exit_code = 7


class ProgramError(HotloopError):
    """A program that the verifier rejects; the message ends with the program."""

    exit_code = 8


class HangError(HotloopError):
    """The watchdog stopped a launch in which no thread made progress."""

    exit_code = 9


class TemplateError(HotloopError):
    """A chat template that is broken, hostile, or takes too long."""

    exit_code = 10


class CacheError(HotloopError):
    """The cache folder cannot be read or written."""

    exit_code = 11


class MachineError(HotloopError):
    """A machine's description that is incomplete or not what it should be."""

    exit_code = 12
