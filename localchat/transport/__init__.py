"""Bytes to and from a server: the requests and responses of one call, for blocking sockets and for asyncio.

From the outside in:

    call.py                         Call: the requests of one call, with retries, and their responses
    connecting.py, addresses.py     the way to a server: host names, proxies, TLS
    exchange.py, http1.py           one request and its response on a connection; HTTP/1.1 without I/O
    operations.py, timeouts.py      the operations of a driver, within the deadlines of the call
    sockets.py, aio_sockets.py      the drivers: Driver blocks the thread, AsyncDriver waits in an event loop
    settings.py                     the arguments of a client, and what it has learned of the server
    failures.py, secrets.py         errors with what to do about them, what is retried; texts without keys

All code above the drivers consists of coroutines, which both clients share. `run_blocking` (sockets.py) runs them for a
blocking client, without an event loop.
"""
