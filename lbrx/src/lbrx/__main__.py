"""python -m lbrx: the command line."""

import sys

import lbrx_command
from lbrx.interrupt import raise_again

if __name__ == "__main__":
    raise_again()
    sys.exit(lbrx_command.main())
