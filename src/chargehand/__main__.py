"""`python -m chargehand`."""

import sys

from chargehand.cli._root import main

sys.exit(main())
