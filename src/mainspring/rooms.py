"""What every room shares: the transaction that its verbs run in.

A verb takes a `Tx`, which is somebody else's open transaction, and never commits; a service opens one.
"""

from __future__ import annotations

from typing import TypeAlias

from mainspring.db import Scope
from mainspring.spine.transaction import Transaction

Tx: TypeAlias = Transaction[Scope]
