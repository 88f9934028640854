"""Raw scores as a table: one row a canary, one column an attack, and the coin.

What belongs here: the form in which scores are kept and read. What does not: where they lie and for how long (the audit
step, `retention`), and what follows from them. Whoever knows the coins can no longer be surprised by an audit, so the
table stays restricted, although canaries are nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dpsynth_platform.audit.attacks import Scored
from dpsynth_platform.audit.bounds import Coins

INCLUDED = "included"


def scores_table(scored: Sequence[Scored], included: Coins) -> pa.Table:
    """The scores of every attack, by its name, in the canaries' order, and the column `included`."""
    columns = {item.attack.name: pa.array(item.scores, pa.float64()) for item in scored}
    return pa.table({INCLUDED: pa.array(included, pa.bool_()), **columns})
