"""Imports what is not there."""

from aotpack.families import NoSuchThing  # type: ignore[attr-defined]  # the defect

__all__ = ["NoSuchThing"]
