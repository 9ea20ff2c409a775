"""hotloop env: every setting, its value now, and what it does."""

from hotloop.util import settings


def env() -> None:
    """List the HOTLOOP_* environment variables with their values."""
    from rich import box
    from rich.table import Table

    from hotloop.cli.console import stdout

    table = Table("setting", "value", "meaning", box=box.SIMPLE_HEAD, pad_edge=False)
    for setting in settings.ALL:
        value = settings.cache_dir() if setting is settings.CACHE else setting.get()
        table.add_row(setting.name, str(value), setting.help)
    stdout().print(table)
