"""The command line: one module per noun. Commands only translate between the screen and the package."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command; a mistake ends with one sentence and the next step, never with a stack trace."""
    from headrace.cli.commands import cli  # here, because the processes that commands start need none of them
    from headrace.errors import HeadraceError

    try:
        cli()
    except HeadraceError as error:
        print(f"headrace: {error.message}", file=sys.stderr)  # noqa: T201
        if error.remedy:
            print(f"  → {error.remedy}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
