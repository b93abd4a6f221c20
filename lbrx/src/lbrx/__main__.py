"""python -m lbrx: the command line."""

import sys

from lbrx.cli import main

if __name__ == "__main__":
    sys.exit(main())
