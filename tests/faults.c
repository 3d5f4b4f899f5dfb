/* Faults on demand: preloaded, it counts the calls that change a file system, and at the n-th kills the process or
   lets the call fail. A write at which the process is killed has got half of its bytes out. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static long nth = -1, seen = 0;
static int fault = 0, lasting = 0, no_locks = 0, done_anyway = 0;
static const char *only = "";

/* Count from here on. At the n-th call (0: never) fail with `error`, or be killed where that is 0; where `lasts`, every
   later call fails too. */
void faults_arm(long n, int error, int lasts) { nth = n; fault = error; lasting = lasts; seen = 0; }
long faults_seen(void) { return seen; }
void faults_deny_locks(int error) { no_locks = error; }
/* Let a call that fails be done nevertheless, as over NFS where the answer was lost and the call sent again. */
void faults_done_anyway(int yes) { done_anyway = yes; }
/* Count only calls whose name has this in it: fsync, chmod, or "across" for renames between directories. */
void faults_only(const char *name) { only = strdup(name); }

static int strikes(const char *name) {
    if (nth < 0 || strstr(name, only) == NULL) return 0;
    seen++;
    return nth > 0 && (seen == nth || (lasting && seen > nth));
}

static int failed(const char *name) {
    if (!strikes(name)) return 0;
    if (fault == 0) { kill(getpid(), SIGKILL); for (;;) pause(); }
    errno = fault;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAILED(call) ({ int error = errno; if (done_anyway) call; errno = error; -1; })
#define WRAP(name, parameters, arguments) \
    int name parameters { return failed(#name) ? FAILED(REAL(name) arguments) : REAL(name) arguments; }

WRAP(mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(mkdirat, (int at, const char *path, mode_t mode), (at, path, mode))
WRAP(rmdir, (const char *path), (path))
WRAP(unlink, (const char *path), (path))
WRAP(unlinkat, (int at, const char *path, int flags), (at, path, flags))
WRAP(renameat, (int at, const char *from, int there, const char *to), (at, from, there, to))
WRAP(chmod, (const char *path, mode_t mode), (path, mode))
WRAP(fchmod, (int file, mode_t mode), (file, mode))
WRAP(fchmodat, (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags))
WRAP(fsync, (int file), (file))
WRAP(fdatasync, (int file), (file))
WRAP(syncfs, (int file), (file))
WRAP(ftruncate64, (int file, off64_t size), (file, size))
WRAP(link, (const char *from, const char *to), (from, to))
WRAP(symlink, (const char *from, const char *to), (from, to))

int rename(const char *from, const char *to) {
    const char *name = strrchr(from, '/'), *other = strrchr(to, '/');
    int within = name && other && name - from == other - to && strncmp(from, to, name - from) == 0;
    return failed(within ? "rename" : "rename across") ? FAILED(REAL(rename)(from, to)) : REAL(rename)(from, to);
}

int flock(int file, int operation) {
    if (no_locks) { errno = no_locks; return -1; }
    return REAL(flock)(file, operation);
}

ssize_t write(int file, const void *data, size_t size) {
    struct stat status;
    int error = errno;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && strikes("write")) {
        if (fault == 0) { REAL(write)(file, data, size / 2); kill(getpid(), SIGKILL); for (;;) pause(); }
        errno = fault;
        return -1;
    }
    errno = error;
    return REAL(write)(file, data, size);
}

#define WRITES(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC))
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        return WRITES(flags) && failed(#name) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        return WRITES(flags) && failed(#name) ? -1 : REAL(name)(at, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
