"""`python -m mainspring`: the same as the `mainspring` command, for children of the supervisor and for cron."""

from __future__ import annotations

import sys

from mainspring.cli import main

sys.exit(main())
