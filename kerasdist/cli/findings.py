"""What the checks of `kerasdist doctor` find, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kerasdist.phases.prose import say
from kerasdist.runs.atomic import as_json

FAILED = 1


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        text: What was found.
        fix: What to do; None if nothing is wrong.
        is_needed: Whether training needs it. If not, it is optional.
        values: The numbers behind the text, for `--json`.
    """

    name: str
    text: str
    fix: str | None = None
    is_needed: bool = True
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """Whether training does not work because of it."""
        return self.fix is not None and self.is_needed

    def fields(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        content = {"ok": self.fix is None, **vars(self)}
        if not self.values:
            del content["values"]
        return content


def show(findings: Iterable[Finding], *, json: bool, quiet: bool) -> list[Finding]:
    """Prints each finding as soon as it is there, and returns them all.

    Args:
        findings: The findings; each is the result of a check that may take a while.
        json: Print JSON objects.
        quiet: Print failures only.
    """
    shown = []
    for finding in findings:
        shown.append(finding)
        if json:
            print(as_json(finding.fields()), flush=True)
        elif not quiet or finding.is_failure:
            mark = "✓" if finding.fix is None else "✗" if finding.is_needed else "-"
            say(f"{mark} {finding.name}: {finding.text}")
            if finding.fix is not None:
                say(f"  {finding.fix}")
    return shown


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if training does not work, else 0."""
    return FAILED if any(finding.is_failure for finding in findings) else 0
