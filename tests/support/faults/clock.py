"""The wall clock of one program and its children, which a test sets while they run."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

# Monotonic clocks stay as they are, as when an operator or NTP sets the time of a machine.
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile const long long *seconds;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("LAREDO_TEST_CLOCK"), O_RDONLY);
    real = dlsym(RTLD_NEXT, "clock_gettime");
    seconds = mmap(0, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || !real || seconds == MAP_FAILED) abort();
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = real(which, now);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) now->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


class WallClock:
    """A clock in ``directory``; programs started with its ``environment`` read it."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock"
        self.set_by(0)
        library = directory / "clock.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"],
            input=_SOURCE.encode(),
            check=True,
        )
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "LAREDO_TEST_CLOCK": str(self._file),
        }

    def set_by(self, seconds: int) -> None:
        """Set it so far from the machine's clock, at once; negative: back."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))
