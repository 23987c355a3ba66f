/* What a process writes and does not sync is lost with the power. This library, loaded before others (LD_PRELOAD), keeps for each
 * database file below POWER_DIR what stood in it before the writes since its last sync, in a file beside it. After the process was
 * killed, `power.rs` puts that back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FDS 65536

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
/* By descriptor: that of the record of its file, plus 1. */
static int records[FDS];

static int (*real_open)(const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

/* Other libraries that are loaded before may open files before this one is set up. */
__attribute__((constructor)) static void find(void) {
    if (real_fdatasync) return;
    real_open = dlsym(RTLD_NEXT, "open");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static int is_kept(const char *path) {
    const char *folder = getenv("POWER_DIR");
    return folder && strncmp(path, folder, strlen(folder)) == 0 && (ends_with(path, ".db") || ends_with(path, ".db-wal"));
}

static int record_of(int fd) {
    find();
    return fd >= 0 && fd < FDS ? records[fd] - 1 : -1;
}

/* Before `length` bytes from `offset` change, or the length of the file does. */
static void keep(int fd, int record, off_t offset, off_t length) {
    struct stat now;
    if (fstat(fd, &now) != 0) abort();
    off_t end = offset + length < now.st_size ? offset + length : now.st_size;
    uint64_t head[3] = {(uint64_t)offset, end > offset ? (uint64_t)(end - offset) : 0, (uint64_t)now.st_size};
    /* In one write, so that a process that is killed leaves whole records, or an end that is cut off. */
    size_t size = sizeof head + head[1];
    char *bytes = malloc(size);
    if (!bytes) abort();
    memcpy(bytes, head, sizeof head);
    for (size_t done = 0; done < head[1];) {
        ssize_t got = pread(fd, bytes + sizeof head + done, head[1] - done, offset + (off_t)done);
        if (got <= 0) abort();
        done += (size_t)got;
    }
    if (real_write(record, bytes, size) != (ssize_t)size) abort();
    free(bytes);
}

static int open_any(const char *path, int flags, mode_t mode) {
    find();
    int fd = real_open(path, flags, mode);
    if (fd >= 0 && fd < FDS && (flags & O_ACCMODE) != O_RDONLY && is_kept(path)) {
        char name[PATH_MAX];
        snprintf(name, sizeof name, "%s.unsynced", path);
        records[fd] = real_open(name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600) + 1;
    }
    return fd;
}

#define OPENS(name)                                  \
    int name(const char *path, int flags, ...) {     \
        va_list rest;                                \
        va_start(rest, flags);                       \
        mode_t mode = (mode_t)va_arg(rest, int);     \
        va_end(rest);                                \
        return open_any(path, flags, mode);          \
    }
OPENS(open)
OPENS(open64)

int close(int fd) {
    int record = record_of(fd);
    if (record >= 0) {
        records[fd] = 0;
        real_close(record);
    }
    return real_close(fd);
}

ssize_t write(int fd, const void *bytes, size_t size) {
    int record = record_of(fd);
    if (record < 0) return real_write(fd, bytes, size);
    pthread_mutex_lock(&turn);
    keep(fd, record, lseek(fd, 0, SEEK_CUR), (off_t)size);
    ssize_t done = real_write(fd, bytes, size);
    pthread_mutex_unlock(&turn);
    return done;
}

static ssize_t pwrite_any(int fd, const void *bytes, size_t size, off_t offset) {
    int record = record_of(fd);
    if (record < 0) return real_pwrite(fd, bytes, size, offset);
    pthread_mutex_lock(&turn);
    keep(fd, record, offset, (off_t)size);
    ssize_t done = real_pwrite(fd, bytes, size, offset);
    pthread_mutex_unlock(&turn);
    return done;
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) { return pwrite_any(fd, bytes, size, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) { return pwrite_any(fd, bytes, size, offset); }

static int ftruncate_any(int fd, off_t length) {
    int record = record_of(fd);
    if (record < 0) return real_ftruncate(fd, length);
    pthread_mutex_lock(&turn);
    keep(fd, record, length, LONG_MAX / 2);
    int done = real_ftruncate(fd, length);
    pthread_mutex_unlock(&turn);
    return done;
}
int ftruncate(int fd, off_t length) { return ftruncate_any(fd, length); }
int ftruncate64(int fd, off64_t length) { return ftruncate_any(fd, length); }

static int synced(int fd, int (*real)(int)) {
    int record = record_of(fd);
    if (record < 0) return real(fd);
    pthread_mutex_lock(&turn);
    int done = real(fd);
    if (done == 0 && real_ftruncate(record, 0) != 0) abort();
    pthread_mutex_unlock(&turn);
    return done;
}
int fsync(int fd) {
    find();
    return synced(fd, real_fsync);
}
int fdatasync(int fd) {
    find();
    return synced(fd, real_fdatasync);
}
