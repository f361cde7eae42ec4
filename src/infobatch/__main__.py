"""`python -m infobatch` runs the laboratory's command line, as `infobatch` does."""

from __future__ import annotations


def main() -> None:
    """Hand over. The import is here, so that importing the library never loads the laboratory."""
    from infobatch_lab.__main__ import main as laboratory

    laboratory()


if __name__ == "__main__":
    main()
