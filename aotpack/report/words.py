"""Words: what every report is made of. Lines, a progress bar, findings, JSON."""

import json
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import click

from aotpack.errors import printable
from aotpack.findings import Finding
from aotpack.report import VERSION


class Words:
    """What is said while a command works: lines and a progress bar, on stderr.

    Use as a context manager, so that a bar that was begun is ended.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._what = ""

    def __enter__(self) -> "Words":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_bar()

    def say(self, line: str) -> None:
        """One line, unless quiet."""
        if not self._quiet:
            self._end_bar()
            click.echo(line, err=True)

    def tick(self, what: str, done: int, total: int) -> None:
        """Progress of one kind of work: a bar with counts and time left, on a terminal."""
        if self._quiet or not sys.stderr.isatty():
            return
        if what != self._what:
            self._end_bar()
            self._bar = click.progressbar(
                length=total, label=what, show_pos=True, show_eta=True, file=sys.stderr, item_show_func=None
            )
            self._bar.__enter__()
            self._what = what
        self._bar.update(done - self._bar.pos)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
            self._what = ""


def show_line(text: str, *, err: bool = False) -> None:
    """One line that may hold names from outside, which shall neither break it nor steer the terminal."""
    click.echo(printable(text), err=err)


def show_error(message: str) -> None:
    """What went wrong, on stderr."""
    show_line(f"Error: {message}", err=True)


def show_findings(findings: Iterable[Finding]) -> None:
    """What a check saw, a line each, on stderr."""
    for finding in findings:
        click.echo(f"Warning: {finding}", err=True)


def show_json(document: dict[str, Any]) -> None:
    """A document on stdout, which says its version first."""
    click.echo(json.dumps({"version": VERSION, **document}, indent=2))


def count(number: int, noun: str) -> str:
    """A number of things: ``1 kernel``, ``2 kernels``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
