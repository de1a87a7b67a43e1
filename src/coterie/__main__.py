"""`python -m coterie` is the command `coterie`."""

import sys

from coterie.cli.main import main

sys.exit(main())
