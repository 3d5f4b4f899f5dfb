"""Figures: what was measured, against what, and whether that is what was asked for; as JSON and as a table."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from aotpack.atomic import write_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked of a figure.

    Attributes:
        word: on which side of the limit it must be.
        limit: of the ratio, where the figure has a rival, else of the value.
    """

    word: Literal["at least", "at most"]
    limit: float

    def met_by(self, number: float) -> bool:
        """Whether a number is on the right side."""
        return number >= self.limit if self.word == "at least" else number <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was measured.

    Attributes:
        name: what.
        value: how much.
        unit: of the value.
        rival: what it is held against in the same run; empty where it stands alone.
        rival_value: how much that takes, in the same unit.
        goal: what is asked of it; None where nothing is.
    """

    name: str
    value: float
    unit: str
    rival: str = ""
    rival_value: float | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """The value in units of the rival's."""
        return self.value / self.rival_value if self.rival_value else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.goal is None:
            return None
        return self.goal.met_by(self.value if self.ratio is None else self.ratio)

    def to_json(self) -> dict[str, Any]:
        """The figure as a JSON value, with what follows from it; ``from_json`` undoes it."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Figure":
        """The figure of a JSON value."""
        given = {name: value for name, value in document.items() if name not in {"ratio", "met"}}
        goal = given.pop("goal")
        return cls(**given, goal=Goal(**goal) if goal else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The figures of a section, and how they came about.

    Attributes:
        name: of the section.
        date: when it was run, as ISO 8601 says it.
        command: what was run.
        machine: on what, see ``workplace.machine``.
        versions: of what took part, by name.
        inputs: what was measured with.
        figures: what came out.
    """

    name: str
    date: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    inputs: dict[str, Any]
    figures: tuple[Figure, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The section as a JSON value; ``from_json`` undoes it."""
        return {**asdict(self), "figures": [figure.to_json() for figure in self.figures]}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Section":
        """The section of a JSON value."""
        figures = tuple(Figure.from_json(figure) for figure in document["figures"])
        return cls(**{**document, "figures": figures})


def read_sections(path: Path) -> list[Section]:
    """The sections of an earlier run; none where there was none."""
    if not path.exists():
        return []
    document = json.loads(path.read_text())
    if document["version"] != FORMAT:
        raise SystemExit(f"{path}: expected version {FORMAT}, found {document['version']}; remove it")
    return [Section.from_json(section) for section in document["sections"]]


def write_sections(path: Path, sections: Iterable[Section]) -> None:
    """Write sections so that ``read_sections`` reads them."""
    document = {"version": FORMAT, "sections": [section.to_json() for section in sections]}
    write_atomically(path, [json.dumps(document, indent=2).encode() + b"\n"])


def merge(earlier: Sequence[Section], new: Section, order: Sequence[str]) -> list[Section]:
    """Sections of earlier runs, of which the new one replaces its own, in order."""
    found = {section.name: section for section in (*earlier, new)}
    return [found[name] for name in order if name in found]


def table(sections: Iterable[Section]) -> str:
    """All figures in one Markdown table."""
    lines = [
        "| section | what | measured | against | ratio | asked | met |",
        "|---|---|--:|---|--:|---|---|",
    ]
    for section in sections:
        for figure in section.figures:
            against = f"{figure.rival}: {spell(figure.rival_value or 0, figure.unit)}" if figure.rival else ""
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
            cells = (section.name, figure.name, spell(figure.value, figure.unit), against, ratio, *_judged(figure))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _judged(figure: Figure) -> tuple[str, str]:
    if figure.goal is None:
        return "", ""
    unit = "times" if figure.rival else figure.unit
    return f"{figure.goal.word} {figure.goal.limit:g} {unit}".strip(), "yes" if figure.met else "no"


def spell(value: float, unit: str) -> str:
    """A number with its unit, to three digits or to the whole number.

    >>> spell(0.12345, "s"), spell(1234.5, "bytes")
    ('0.123 s', '1,234 bytes')
    """
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004  # three digits and a comma
    return f"{number} {unit}".strip()
