"""Reports: what the command line shows. The only module that prints.

Data goes to stdout, as text or as JSON with ``"version": 1``; words go to stderr. Progress is shown on a terminal
alone.
"""

VERSION = 1
"""Of the JSON documents."""
