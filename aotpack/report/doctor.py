"""What the doctor saw, and why kernels were compiled."""

from collections.abc import Iterable
from typing import Any

import click

from aotpack.doctor import Diagnosis
from aotpack.findings import Finding, is_error
from aotpack.misses.miss import Miss
from aotpack.report.words import count, show_json, show_line
from aotpack.tritoncache import directory_name


def show_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """What the doctor saw, a section for each subject, each finding below its section."""
    if as_json:
        show_json(
            {
                "sound": not diagnosis.errors,
                "sections": [
                    {
                        "title": section.title,
                        "rows": [{"name": name, "value": value} for name, value in section.rows],
                        "findings": [_spell_finding(finding) for finding in section.findings],
                    }
                    for section in diagnosis.sections
                ],
            }
        )
        return
    for section in diagnosis.sections:
        click.echo(section.title)
        for name, value in section.rows:
            click.echo(f"  {name:<16}{value}")
        for finding in section.findings:
            click.echo(f"  {'Error' if is_error(finding) else 'Warning'}: {finding}")
    errors = len(diagnosis.errors)
    warnings = len(diagnosis.findings) - errors
    click.echo(f"{count(errors, 'error')}, {count(warnings, 'warning')}", err=True)


def _spell_finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "error": is_error(finding),
        "subject": finding.subject,
        "detail": finding.detail,
        "hint": finding.hint,
    }


def show_misses(misses: Iterable[Miss], *, as_json: bool) -> None:
    """Why kernels were compiled: for each the nearest entry, the parts that differ, and what to do about each."""
    if as_json:
        show_json({"misses": [_spell_miss(miss) for miss in misses]})
        return
    for miss in misses:
        took = "" if miss.milliseconds is None else f", compiled in {miss.milliseconds:.0f} ms"
        show_line(f"{miss.kernel}{took}")
        show_line(f"  compiled as  {miss.cache / directory_name(miss.cache_key)}")
        if miss.nearest is not None:
            show_line(f"  nearest      {miss.nearest.key.describe()}")
        for item in miss.differences:
            show_line(f"  {item.part} {item.name}".rstrip())
            show_line(f"    bundle     {item.bundle}")
            show_line(f"    here       {item.here}")
            show_line(f"    advice     {item.advice}")
        if miss.unknown:
            show_line(f"  not known    {', '.join(miss.unknown)}; a listener's record tells (see --help)")


def _spell_miss(miss: Miss) -> dict[str, Any]:
    return {
        "kernel": miss.kernel,
        "cache_key": miss.cache_key,
        "cache": str(miss.cache),
        "milliseconds": miss.milliseconds,
        "nearest": miss.nearest.key.to_json() if miss.nearest else None,
        "differences": [
            {"part": item.part, "name": item.name, "bundle": item.bundle, "here": item.here, "advice": item.advice}
            for item in miss.differences
        ],
        "unknown": list(miss.unknown),
    }
