"""`python -m loadgen.emulator`."""

from __future__ import annotations

import sys

from loadgen.emulator.serve import main

sys.exit(main())
