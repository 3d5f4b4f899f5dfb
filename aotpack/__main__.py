"""``python -m aotpack``: the command line."""

from aotpack.cli import main

if __name__ == "__main__":
    main()
