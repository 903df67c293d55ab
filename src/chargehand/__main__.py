"""`python -m chargehand`."""

import sys

from chargehand.cli import main

sys.exit(main())
