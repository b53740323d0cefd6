"""Foreign errors, translated once: which faults of the database are worth another try, and which are the data's."""

from __future__ import annotations

import asyncpg

LOST_CONNECTION: tuple[type[BaseException], ...] = (
    asyncpg.PostgresConnectionError,  # 08xxx: closed, refused, lost in mid-statement
    asyncpg.InterfaceError,  # "connection is closed", "pool is closing"
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,  # 57P01
    asyncpg.CrashShutdownError,  # 57P02
    asyncpg.CannotConnectNowError,  # 57P03: starting up or shutting down
    asyncpg.ReadOnlySQLTransactionError,  # 25006: a primary that was demoted
    OSError,  # includes TimeoutError
)
"""The connection is of no more use. Whether the statement was committed is in doubt; each can be run again."""

BUSY: tuple[type[BaseException], ...] = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InsufficientResourcesError,  # disk full, out of memory, too many connections
    asyncpg.InvalidSQLStatementNameError,  # a pooler in transaction mode with the statement cache on
    asyncpg.DuplicatePreparedStatementError,
)
"""The connection is sound, the statement was not carried out; it may succeed a moment later."""

WORTH_ANOTHER_TRY = LOST_CONNECTION + BUSY

BAD_DATA: tuple[type[BaseException], ...] = (
    ValueError,  # an argument that the driver cannot encode
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
"""The database refuses the values. They were validated before, so this is a fault of ours; it must stay alone."""

REFUSED_OR_LOST: tuple[type[BaseException], ...] = (*WORTH_ANOTHER_TRY, *BAD_DATA, asyncpg.PostgresError)
"""Whatever a statement can end in but success."""

FAULTS: tuple[type[Exception], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that the server has given up, and whose end has not been heard of yet
    OSError,  # includes TimeoutError
)
"""Whatever goes wrong between here and the database, for who only wants to know that it did."""
