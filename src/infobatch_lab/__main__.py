"""The command `infobatch`, which needs the packages of the extra `experiments`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say in one sentence which package is missing."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"{error.name} is not installed: pip install infobatch[experiments].")
    from infobatch_lab.cli import run

    run()


if __name__ == "__main__":
    main()
