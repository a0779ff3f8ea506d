"""`python -m etrax` is the command `etrax`."""

import sys

from .cli import main

sys.exit(main())
