"""What a build, a listing of keys, a tuning and a coverage found."""

import click

from aotpack.build import Built, Enumeration
from aotpack.coverage import Coverage
from aotpack.findings import Finding
from aotpack.manifest import Reached
from aotpack.report.words import Words, count, show_findings, show_json, show_line
from aotpack.tune import Tuned


def show_built(built: Built, words: Words) -> None:
    """A build's result: the bundle's path as data, the rest as words."""
    show_findings(built.findings)
    for failure in built.failures:
        finding = Finding(code="K101", subject=failure.key.describe(), detail=failure.reason)
        click.echo(f"Failed: {finding}", err=True)
    held, lacking = len(built.bundle.manifest.entries), len(built.failures)
    missing = f", {lacking} missing" if lacking else ""
    words.say(f"{count(held, 'key')}{missing}, {built.bundle.size:,} bytes, {built.bundle.digest}")
    click.echo(str(built.bundle.path))


def show_tuned(tuned: Tuned, words: Words) -> None:
    """What was measured: the files as data, the rest as words."""
    for failure in tuned.failures:
        tuning = failure.trial.tuning
        finding = Finding(code="U101", subject=f"{tuning.kernel} {tuning.key}", detail=failure.reason)
        click.echo(f"Failed: {finding}", err=True)
    for result in tuned.results:
        times = next(
            time for one, time in zip(result.tuning.configurations, result.times, strict=True) if one == result.fastest
        )
        kernel = result.tuning.kernel.rpartition(":")[2]
        words.say(f"{kernel} {result.tuning.key}: {result.fastest}, {1000 * (times or (0.0,))[0]:.1f} us")
    known = f", {tuned.known} known before" if tuned.known else ""
    failed = f", {len(tuned.failures)} failed" if tuned.failures else ""
    words.say(f"{count(len(tuned.results), 'result')} for {tuned.device}{known}{failed}")
    for path in tuned.files:
        click.echo(str(path))


def show_keys(enumeration: Enumeration, words: Words, *, as_json: bool) -> None:
    """The keys of an enumeration, each with an input that reaches it."""
    show_findings(enumeration.findings())
    if as_json:
        show_json(
            {
                "engine": {"name": enumeration.engine.name, "version": enumeration.engine.version},
                "triton": enumeration.toolchain.triton,
                "deployments": [deployment.to_json() for deployment in enumeration.deployments],
                "keys": [
                    {
                        "digest": key.digest,
                        "reached": {"deployment": reached.deployment, "input": dict(reached.input)},
                        "key": key.to_json(),
                    }
                    for key, reached in enumeration.keys
                ],
            }
        )
        return
    for key, reached in enumeration.keys:
        show_line(key.describe())
        show_line(f"  {key.digest}  reached by {_reached(reached, enumeration)}")
    words.say(f"{count(len(enumeration.keys), 'key')} for Triton {enumeration.toolchain.triton}")


def _reached(reached: Reached, enumeration: Enumeration) -> str:
    quantities = ", ".join(f"{name}={value}" for name, value in reached.input)
    return f"{enumeration.deployments[reached.deployment]}: {quantities}"


def show_coverage(coverage: Coverage, *, as_json: bool) -> None:
    """What a bundle holds of what is needed, by kernel, and each key that it lacks."""
    if as_json:
        show_json(
            {
                "complete": coverage.complete,
                "kernels": [
                    {"kernel": row.kernel, "needed": row.needed, "held": row.held, "missing": list(row.missing)}
                    for row in coverage.kernels
                ],
                "unknowns": [
                    {"family": unknown.family, "name": unknown.name, "fixed_by": unknown.fixed_by}
                    for unknown in coverage.unknowns
                ],
            }
        )
        return
    width = max((len(row.kernel) for row in coverage.kernels), default=6)
    show_line(f"{'kernel':<{width}}  needed    held missing")
    for row in coverage.kernels:
        show_line(f"{row.kernel:<{width}} {row.needed:>7} {row.held:>7} {len(row.missing):>7}")
    needed, held = (sum(getattr(row, name) for row in coverage.kernels) for name in ("needed", "held"))
    show_line(f"{'all':<{width}} {needed:>7} {held:>7} {needed - held:>7}")
    for row in coverage.kernels:
        for missing in row.missing:
            show_line(f"missing: {missing}")
    for unknown in coverage.unknowns:
        show_line(f"unknown: {unknown.name} (family {unknown.family}) is fixed by {unknown.fixed_by}")
