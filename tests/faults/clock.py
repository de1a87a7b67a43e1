"""A clock that can be set for some processes, where the machine has a C compiler.

A few lines of C stand before the C library's own functions in a process that is started with
`LD_PRELOAD`, and add to the time of day what a file says.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long step(void) {
    const char *path = getenv("COTERIE_TEST_CLOCK");
    FILE *file = path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (!code && clock == CLOCK_REALTIME) now->tv_sec += step();
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    if (!code) now->tv_sec += step();
    return code;
}
"""


class SettableClock:
    """The clock of the processes that have `environment`; `works` says whether it can be set."""

    def __init__(self, folder: Path) -> None:
        self.file, library = folder / "clock", folder / "clock.so"
        self.set(0)
        compiler = shutil.which("cc")
        self.works = False
        if compiler is not None:
            command = [compiler, "-shared", "-fPIC", "-o", str(library), "-x", "c", "-", "-ldl"]
            self.works = not subprocess.run(command, input=SOURCE, text=True).returncode
        self.environment = {"COTERIE_TEST_CLOCK": str(self.file)}
        if self.works:
            self.environment["LD_PRELOAD"] = str(library)

    def set(self, seconds: int) -> None:
        """How far the clock is from the machine's."""
        self.file.write_text(str(seconds))
