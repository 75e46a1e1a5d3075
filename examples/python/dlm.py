"""Distributed locks for asyncio, over libdlm by ctypes. A task that waits for a lock blocks neither the event loop nor a
thread. Cancelling the task gives up the wait, and a lease that comes too late is released.

    async with manager.lock("report") as lease:
        write(page, lease.guard())  # the fence to send with each write
    async with manager.lock("report", mode=SHARED):
        read(page)  # beside other readers
    async with manager.lock("licence", permits=5) as lease:
        compile(lease.permit())  # 0 to 4, at most five at a time

Run as a program, it counts with 20 tasks under one lock:  python3 dlm.py LIBDLM.SO [STORE]
"""

import asyncio
import contextlib
import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_int32, c_int64, c_size_t, c_uint8, c_uint64, c_void_p, sizeof

XDC, FOREVER, LEASE_LOST = 2, -1, 8  # DLM_LEVEL_XDC, DLM_FOREVER, DLM_LEASE_LOST
EXCLUSIVE, SHARED, UPDATE = 0, 1, 2  # DLM_MODE_EXCLUSIVE and so on
OUT = POINTER(c_void_p)


class AcquireOptions(Structure):
    """struct dlm_acquire_options."""

    _fields_ = [
        ("size", c_size_t),
        ("ttl_ms", c_int64),
        ("wait_ms", c_int64),
        ("max_hold_ms", c_int64),
        ("min_hold_ms", c_int64),
        ("cancel", c_void_p),
        ("mode", c_int32),
        ("dies_with_process", c_bool),
        ("reserved", c_uint8 * 3),
        ("nested_in", c_void_p),
    ]



FUNCTIONS = {  # the arguments, without error_out
    "dlm_manager_open": [c_char_p, c_void_p, OUT],
    "dlm_manager_initialize": [c_void_p],
    "dlm_manager_lock": [c_void_p, c_char_p, c_int32, OUT],
    "dlm_manager_close": [c_void_p],
    "dlm_manager_semaphore": [c_void_p, c_char_p, c_int32, c_int32, OUT],
    "dlm_lock_acquire_start": [c_void_p, POINTER(AcquireOptions), OUT],
    "dlm_semaphore_acquire_start": [c_void_p, c_size_t, POINTER(AcquireOptions), OUT],
    "dlm_pending_fd": [c_void_p, POINTER(c_int32)],
    "dlm_pending_take": [c_void_p, OUT],
    "dlm_pending_take_permits": [c_void_p, OUT, c_size_t],
    "dlm_lease_guard": [c_void_p, POINTER(c_uint64)],
    "dlm_lease_release_start": [c_void_p, OUT],
    "dlm_call_fd": [c_void_p, POINTER(c_int32)],
    "dlm_call_take": [c_void_p, POINTER(c_bool), POINTER(c_bool)],
}


class DlmError(Exception):
    """A failed call. `status` is one of enum dlm_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name, arguments in FUNCTIONS.items():
            getattr(self.c, name).argtypes = arguments + [OUT]
        for kind in ["manager", "lock", "semaphore", "pending", "lease", "call", "error"]:
            free = getattr(self.c, f"dlm_{kind}_free")
            free.argtypes, free.restype = [c_void_p], None
        self.c.dlm_lease_permit.argtypes, self.c.dlm_lease_permit.restype = [c_void_p], c_int32
        self.c.dlm_error_message.argtypes, self.c.dlm_error_message.restype = [c_void_p], c_char_p

    def call(self, name, *arguments):
        error = c_void_p()
        status = getattr(self.c, name)(*arguments, byref(error))
        if status != 0:
            message = self.c.dlm_error_message(error).decode()
            self.c.dlm_error_free(error)
            raise DlmError(status, message)


async def readable(fd):
    """Waits until the descriptor is readable."""
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, finished.set)
    try:
        await finished.wait()
    finally:
        loop.remove_reader(fd)


def text(value):
    """C would take a text with NUL for a shorter one, and so another lock."""
    if "\0" in value:
        raise ValueError(f"a text with NUL is not allowed: {value!r}")
    return value.encode()


class Lease:
    def __init__(self, library, handle):
        self._library, self._handle = library, handle

    def guard(self):
        """Checks that the lease is valid and returns its fence, which readers do not have. No I/O."""
        if not self._handle:
            raise DlmError(LEASE_LOST, "the lease was released")
        fence = c_uint64()
        self._library.call("dlm_lease_guard", self._handle, byref(fence))
        return fence.value

    def permit(self):
        """Returns the number of the permit, or -1 for a lock."""
        return self._library.c.dlm_lease_permit(self._handle)

    async def release(self):
        """Releases the lock. Returns False if the lease was released or found lost before."""
        if not self._handle:
            return False
        handle, self._handle = self._handle, None
        call, fd, done, freed, free = c_void_p(), c_int32(), c_bool(), c_bool(), True
        try:
            # A thread of Python for each release would take many times as long as the release.
            self._library.call("dlm_lease_release_start", handle, byref(call))
            self._library.call("dlm_call_fd", call, byref(fd))
            await readable(fd.value)
            self._library.call("dlm_call_take", call, byref(done), byref(freed))
            return freed.value
        except asyncio.CancelledError:
            free = False  # it waits for the release, which goes on
            asyncio.get_running_loop().run_in_executor(None, self._free, call, handle)
            raise
        finally:
            if free:
                self._free(call, handle)

    def _free(self, call, handle):
        self._library.c.dlm_call_free(call)
        self._library.c.dlm_lease_free(handle)


class Manager:
    """One store. Call `close` at the end. Use it from the thread of one event loop."""

    def __init__(self, library, uri):
        self._library, self._handle = Library(library), c_void_p()
        self._library.call("dlm_manager_open", text(uri), None, byref(self._handle))
        self._library.call("dlm_manager_initialize", self._handle)

    async def acquire(self, name, ttl=30.0, wait=60.0, mode=EXCLUSIVE, permits=None):
        """Waits for the lock, or for one of so many permits. The library keeps the lease alive until it is released."""
        lock, semaphore, pending, lease, fd = c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_int32()
        call, c = self._library.call, self._library.c
        how = AcquireOptions(sizeof(AcquireOptions), int(ttl * 1000), int(wait * 1000), FOREVER, 0, None, mode)
        try:
            if permits is None:
                call("dlm_manager_lock", self._handle, text(name), XDC, byref(lock))
                call("dlm_lock_acquire_start", lock, byref(how), byref(pending))
            else:
                call("dlm_manager_semaphore", self._handle, text(name), XDC, permits, byref(semaphore))
                call("dlm_semaphore_acquire_start", semaphore, 1, byref(how), byref(pending))
            call("dlm_pending_fd", pending, byref(fd))
            await readable(fd.value)
            if permits is None:
                call("dlm_pending_take", pending, byref(lease))
            else:
                call("dlm_pending_take_permits", pending, byref(lease), 1)
            return Lease(self._library, lease)
        finally:
            c.dlm_pending_free(pending)  # cancels it if the task was cancelled
            c.dlm_semaphore_free(semaphore)
            c.dlm_lock_free(lock)

    @contextlib.asynccontextmanager
    async def lock(self, name, ttl=30.0, wait=60.0, mode=EXCLUSIVE, permits=None):
        lease = await self.acquire(name, ttl, wait, mode, permits)
        try:
            yield lease
        finally:
            await asyncio.shield(lease.release())

    async def close(self):
        await asyncio.to_thread(self._library.call, "dlm_manager_close", self._handle)
        self._library.c.dlm_manager_free(self._handle)


async def main(library, store):
    manager = Manager(library, store + "?client=python&retry=20ms&timeout=60s")
    counted, fences = 0, []

    async def count():
        nonlocal counted
        async with manager.lock("counter") as lease:
            fences.append(lease.guard())
            seen = counted
            await asyncio.sleep(0)  # without the lock, other tasks would count here
            counted = seen + 1

    await asyncio.gather(*(count() for _ in range(20)))
    print("counted to", counted, "with rising fences:", fences == sorted(set(fences)))

    async with manager.lock("held") as lease:
        for name, waiting in [("task", manager.acquire("held")), ("wait", manager.acquire("held", wait=0.05))]:
            try:
                await asyncio.wait_for(waiting, 0.05 if name == "task" else None)
            except asyncio.TimeoutError:
                print("the task was cancelled")
            except DlmError as error:
                print("the wait is over:", str(error).split(" by ")[0])
        lease.guard()
    async with manager.lock("read", mode=SHARED), manager.lock("read", mode=SHARED):
        print("two readers")
    async with manager.lock("pool", permits=2) as one, manager.lock("pool", permits=2) as other:
        print("permits", sorted([one.permit(), other.permit()]))
    lease = await manager.acquire("held", wait=10)
    print("released:", await lease.release(), "and again:", await lease.release())
    await manager.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "embedded:"))
