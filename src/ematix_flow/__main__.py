"""``python -m ematix_flow``: the command ``flow`` with the current interpreter."""

from ematix_flow.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
