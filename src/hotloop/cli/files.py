"""Write a file completely or not at all."""

from pathlib import Path

from hotloop.util.errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Put `text` in place in one step; raises `UsageError` where that cannot be done."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be written ({reason}); give another file.") from None
