"""Files of the Hugging Face hub, kept in its own layout inside our cache."""

from pathlib import Path

from hotloop.util.errors import CacheError, DownloadError, UsageError

PREFIX = "hf:"


def fetch(name: str, folder: Path, refresh: bool) -> Path:
    """The file that `name` (`hf:owner/repo/file.gguf`) means, fetched into `folder`.

    A file that is there is taken without asking the hub, unless `refresh`. `huggingface_hub` names
    files only when complete, resumes what was interrupted, and draws its own progress bar.
    """
    owner, _, rest = name.removeprefix(PREFIX).partition("/")
    repo, _, file_name = rest.partition("/")
    if not (owner and repo and file_name):
        raise UsageError(f"{name!r} is not of the form {PREFIX}owner/repo/file.gguf.")

    from huggingface_hub import hf_hub_download

    # Downloads let HTTPError through, which the library doesn't declare as its own.
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError  # type: ignore[attr-defined]

    def download(local_files_only: bool) -> Path:
        return Path(
            hf_hub_download(
                f"{owner}/{repo}", file_name, cache_dir=folder, local_files_only=local_files_only
            )
        )

    try:
        if not refresh:
            try:
                return download(local_files_only=True)
            except LocalEntryNotFoundError:
                pass
        return download(local_files_only=False)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise CacheError(
            f"{folder} cannot be used as cache ({error.strerror}); set HOTLOOP_CACHE to another "
            "folder."
        ) from None
    except (OSError, ValueError, HTTPError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise DownloadError(
            f"{name} could not be downloaded ({reason}); check the name and the network."
        ) from None
