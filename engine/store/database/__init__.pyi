from .backup import (
    Held as Held,
    check_copy as check_copy,
)
from .connection import (
    CHECKPOINT_PAGES as CHECKPOINT_PAGES,
    GuardedConnection as GuardedConnection,
    barrier as barrier,
    checkpoint as checkpoint,
    guarded as guarded,
    insert as insert,
    insert_all as insert_all,
    open_database as open_database,
    transaction as transaction,
)
from .outside import (
    outside_transaction as outside_transaction,
)
from .schema import (
    is_current as is_current,
    is_newer as is_newer,
    newer as newer,
    read_only as read_only,
)
