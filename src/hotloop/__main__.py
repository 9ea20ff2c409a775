"""`python -m hotloop` is the command line."""

from hotloop.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
