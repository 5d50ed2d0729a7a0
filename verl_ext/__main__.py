"""Entry point of the command line, `verl-ext` or `python -m verl_ext`; says what to install where that is missing."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from verl_ext.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"verl-ext: the command line needs {error.name}; pip install 'verl-ext[cli]' brings it")
    app()


if __name__ == "__main__":
    main()
