/* Records what processes write below one directory, and what they sync.
 *
 * Loaded by LD_PRELOAD. POWER_CUT_ROOT is the directory, POWER_CUT_JOURNAL the file that receives
 * one record for each call (see journal.py), appended after the call has succeeded. Files that the
 * C library writes by itself (fopen) are recorded whole when they are synced or closed. Syncs do not
 * reach the disk: their records tell what a real one would have made durable.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS_MAX 65536
#define MAGIC 0x43505743u

struct header {
    uint32_t magic, kind;
    uint64_t inode, offset;
    uint32_t first_length, second_length;
};

static char root[PATH_MAX];
static size_t root_length;
static dev_t device;
static int journal = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t inodes[FDS_MAX];   /* of the descriptors below the root */
static char by_stdio[FDS_MAX];     /* written by the C library itself */

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void set_up(void) {
    const char *directory = getenv("POWER_CUT_ROOT"), *path = getenv("POWER_CUT_JOURNAL");
    struct stat found;
    if (directory == NULL || path == NULL || stat(directory, &found) != 0) return;
    __typeof__(&open) real_open = (__typeof__(&open))dlsym(RTLD_NEXT, "open");
    int opened = real_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (opened < 0) return;
    /* Out of the way of programs that count on low numbers. */
    int high = fcntl(opened, F_DUPFD_CLOEXEC, 1000);
    if (high >= 0) { REAL(close); real(opened); opened = high; }
    device = found.st_dev;
    snprintf(root, sizeof root, "%s", directory);
    root_length = strlen(root);
    journal = opened;
}

static int ready(void) { pthread_once(&once, set_up); return journal >= 0; }

__attribute__((constructor)) static void at_load(void) { ready(); }

static void put(uint32_t kind, uint64_t inode, uint64_t offset, const void *first, size_t length,
                const struct iovec *more, int count, size_t limit) {
    struct iovec parts[3];
    int saved = errno;
    REAL(writev);
    char *joined = NULL;
    size_t total = 0;
    if (count == 1) {
        total = more[0].iov_len < limit ? more[0].iov_len : limit;
    } else if (count > 1) {
        joined = malloc(limit ? limit : 1);
        if (joined == NULL) abort();
        for (int i = 0; i < count && total < limit; i++) {
            size_t left = limit - total, size = more[i].iov_len < left ? more[i].iov_len : left;
            memcpy(joined + total, more[i].iov_base, size);
            total += size;
        }
    }
    struct header header = {MAGIC, kind, inode, offset, (uint32_t)length, (uint32_t)total};
    parts[0] = (struct iovec){&header, sizeof header};
    parts[1] = (struct iovec){(void *)first, length};
    parts[2] = (struct iovec){joined != NULL ? joined : count ? more[0].iov_base : NULL, total};
    size_t expected = sizeof header + length + total;
    /* One call on a file opened for appending: records of several processes do not mix. */
    if (real(journal, parts, 3) != (ssize_t)expected) abort(); /* a journal with gaps lies */
    free(joined);
    errno = saved;
}

static void put_data(uint64_t inode, uint64_t offset, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    put('w', inode, offset, "", 0, &part, 1, length);
}

static void put_names(uint32_t kind, uint64_t inode, const char *first, const char *second) {
    struct iovec part = {(void *)second, strlen(second)};
    put(kind, inode, 0, first, strlen(first), &part, 1, strlen(second));
}

/* Whether a path lies below the root; writes it, absolute, to `found`. */
static int below(int directory, const char *path, char found[PATH_MAX]) {
    char base[PATH_MAX] = "";
    if (!ready() || path == NULL) return 0;
    if (path[0] != '/') {
        char link[64];
        if (directory == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
        while (strncmp(path, "./", 2) == 0) path += 2;
        if (snprintf(found, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
    } else if (snprintf(found, PATH_MAX, "%s", path) >= PATH_MAX) {
        return 0;
    }
    size_t length = strlen(found);
    while (length > root_length && found[length - 1] == '/') found[--length] = 0;
    return strncmp(found, root, root_length) == 0 &&
           (found[root_length] == '/' || found[root_length] == 0);
}

/* The inode of a descriptor of a regular file below the root, else 0. */
static uint64_t inode_of(int fd) {
    struct stat found;
    char link[64], path[PATH_MAX];
    int saved = errno;
    if (!ready() || fd < 0 || fd >= FDS_MAX || fd == journal) return 0;
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode) || found.st_dev != device) {
        errno = saved;
        return 0;
    }
    if (inodes[fd] == found.st_ino) return found.st_ino;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, root, root_length) != 0 || path[root_length] != '/') return 0;
    inodes[fd] = found.st_ino;
    by_stdio[fd] = 0;
    return found.st_ino;
}

static int exists(const char *path) {
    struct stat found;
    int saved = errno, there = lstat(path, &found) == 0;
    errno = saved;
    return there;
}

/* --- open ------------------------------------------------------------------------------------- */

static void opened(int fd, const char *path, int was_there, int truncates) {
    uint64_t inode = fd < 0 ? 0 : inode_of(fd);
    if (inode == 0) return;
    if (!was_there) put_names('c', inode, path, "");
    else if (truncates) put('t', inode, 0, "", 0, NULL, 0, 0);
}

#define OPEN(name, parameters, directory, call) \
    int name parameters { \
        REAL(name); \
        char found[PATH_MAX]; \
        mode_t mode = 0; \
        if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        } \
        int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); \
        int ours = writes && below(directory, path, found); \
        int there = ours && exists(found); \
        int fd = real call; \
        if (ours) opened(fd, found, there, flags & O_TRUNC); \
        return fd; \
    }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), at, (at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), at, (at, path, flags, mode))

int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

static FILE *opened_stream(FILE *file, const char *path, int was_there, int truncates) {
    if (file == NULL) return NULL;
    int fd = fileno(file);
    opened(fd, path, was_there, truncates);
    if (inode_of(fd)) by_stdio[fd] = 1;
    return file;
}

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(name); \
        char found[PATH_MAX]; \
        int ours = strpbrk(mode, "wa+") != NULL && below(AT_FDCWD, path, found); \
        int there = ours && exists(found); \
        FILE *file = real(path, mode); \
        return ours ? opened_stream(file, found, there, mode[0] == 'w') : file; \
    }
FOPEN(fopen)
FOPEN(fopen64)

static void whole(int fd, uint64_t inode) {
    struct stat found;
    if (fstat(fd, &found) != 0) return;
    char *content = malloc(found.st_size + 1), link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = open(link, O_RDONLY | O_CLOEXEC);
    ssize_t length = again < 0 ? -1 : pread(again, content, found.st_size, 0);
    if (length >= 0) put_data(inode, 0, content, length);
    if (again >= 0) close(again);
    free(content);
}

int fclose(FILE *file) {
    REAL(fclose);
    int fd = fileno(file);
    uint64_t inode = fd >= 0 && fd < FDS_MAX && by_stdio[fd] ? inode_of(fd) : 0;
    if (inode) { fflush(file); whole(fd, inode); }
    if (fd >= 0 && fd < FDS_MAX) inodes[fd] = by_stdio[fd] = 0;
    return real(file);
}

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd == journal) return 0; /* programs close all they do not know */
    if (fd >= 0 && fd < FDS_MAX) inodes[fd] = by_stdio[fd] = 0;
    return real(fd);
}

/* --- data ------------------------------------------------------------------------------------- */

/* Where a write without an offset has ended, which the position tells also when appending. */
static uint64_t begin_of(int fd, ssize_t length) {
    int saved = errno;
    off_t end = lseek(fd, 0, SEEK_CUR);
    errno = saved;
    return (uint64_t)(end - length);
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(write);
    uint64_t inode = inode_of(fd);
    ssize_t done = real(fd, data, length);
    if (inode && done > 0) put_data(inode, begin_of(fd, done), data, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    uint64_t inode = inode_of(fd);
    ssize_t done = real(fd, parts, count);
    if (inode && done > 0) put('w', inode, begin_of(fd, done), "", 0, parts, count, done);
    return done;
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t length, offset_type offset) { \
        REAL(name); \
        uint64_t inode = inode_of(fd); \
        ssize_t done = real(fd, data, length, offset); \
        if (inode && done > 0) put_data(inode, offset, data, done); \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PWRITEV(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) { \
        REAL(name); \
        uint64_t inode = inode_of(fd); \
        ssize_t done = real(fd, parts, count, offset); \
        if (inode && done > 0) put('w', inode, offset, "", 0, parts, count, done); \
        return done; \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

/* A program that is refused these copies with read and write. */
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    REAL(sendfile);
    if (inode_of(out)) { errno = EINVAL; return -1; }
    return real(out, in, offset, count);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) {
    REAL(sendfile64);
    if (inode_of(out)) { errno = EINVAL; return -1; }
    return real(out, in, offset, count);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    REAL(copy_file_range);
    if (inode_of(out)) { errno = EXDEV; return -1; }
    return real(in, from, out, to, count, flags);
}

#define FTRUNCATE(name, type) \
    int name(int fd, type length) { \
        REAL(name); \
        uint64_t inode = inode_of(fd); \
        int result = real(fd, length); \
        if (inode && result == 0) put('t', inode, length, "", 0, NULL, 0, 0); \
        return result; \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define TRUNCATE(name, type) \
    int name(const char *path, type length) { \
        REAL(name); \
        char found[PATH_MAX]; \
        struct stat file; \
        int result = real(path, length); \
        if (result == 0 && below(AT_FDCWD, path, found) && stat(path, &file) == 0) \
            put('t', file.st_ino, length, "", 0, NULL, 0, 0); \
        return result; \
    }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

/* Only growth is seen by readers: zeros, as after a truncation upwards. */
static void grown(int fd, uint64_t end) {
    uint64_t inode = inode_of(fd);
    struct stat found;
    if (inode && fstat(fd, &found) == 0 && (uint64_t)found.st_size >= end)
        put('g', inode, end, "", 0, NULL, 0, 0);
}
#define FALLOCATE(name, type) \
    int name(int fd, int mode, type offset, type length) { \
        REAL(name); \
        if (mode & ~FALLOC_FL_KEEP_SIZE && inode_of(fd)) { errno = EOPNOTSUPP; return -1; } \
        int result = real(fd, mode, offset, length); \
        if (result == 0 && mode == 0) grown(fd, offset + length); \
        return result; \
    }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)
#define POSIX_FALLOCATE(name, type) \
    int name(int fd, type offset, type length) { \
        REAL(name); \
        int result = real(fd, offset, length); \
        if (result == 0) grown(fd, offset + length); \
        return result; \
    }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define MMAP(name, type) \
    void *name(void *at, size_t length, int protection, int flags, int fd, type offset) { \
        REAL(name); \
        if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE)) { \
            uint64_t inode = inode_of(fd); \
            if (inode) put('m', inode, 0, "", 0, NULL, 0, 0); \
        } \
        return real(at, length, protection, flags, fd, offset); \
    }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

/* --- names ------------------------------------------------------------------------------------ */

static int renamed(int from_at, const char *from, int to_at, const char *to, int result) {
    char first[PATH_MAX], second[PATH_MAX];
    int a = result == 0 && below(from_at, from, first), b = a && below(to_at, to, second);
    if (b) put_names('r', 0, first, second);
    else if (a) put_names('u', 0, first, "");
    return result;
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return renamed(AT_FDCWD, from, AT_FDCWD, to, real(from, to));
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat);
    return renamed(a, from, b, to, real(a, from, b, to));
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(renameat2);
    return renamed(a, from, b, to, real(a, from, b, to, flags));
}

static int linked(int from_at, const char *from, int to_at, const char *to, int result) {
    char first[PATH_MAX], second[PATH_MAX];
    if (result == 0 && below(from_at, from, first) && below(to_at, to, second))
        put_names('l', 0, first, second);
    return result;
}

int link(const char *from, const char *to) {
    REAL(link);
    return linked(AT_FDCWD, from, AT_FDCWD, to, real(from, to));
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(linkat);
    return linked(a, from, b, to, real(a, from, b, to, flags));
}

static int named(uint32_t kind, int at, const char *path, int result) {
    char found[PATH_MAX];
    if (result == 0 && below(at, path, found)) put_names(kind, 0, found, "");
    return result;
}

int unlink(const char *path) { REAL(unlink); return named('u', AT_FDCWD, path, real(path)); }
int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat);
    return named(flags & AT_REMOVEDIR ? 'x' : 'u', at, path, real(at, path, flags));
}
int rmdir(const char *path) { REAL(rmdir); return named('x', AT_FDCWD, path, real(path)); }
int remove(const char *path) {
    struct stat found;
    if (lstat(path, &found) == 0 && S_ISDIR(found.st_mode)) return rmdir(path);
    return unlink(path);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return named('d', AT_FDCWD, path, real(path, mode));
}
int mkdirat(int at, const char *path, mode_t mode) {
    REAL(mkdirat);
    return named('d', at, path, real(at, path, mode));
}

/* --- syncs ------------------------------------------------------------------------------------ */

static int synced(int fd) {
    struct stat found;
    char link[64], path[PATH_MAX] = "";
    if (!ready() || fstat(fd, &found) != 0 || found.st_dev != device) return 0;
    uint64_t inode = inode_of(fd);
    if (S_ISDIR(found.st_mode)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        path[length < 0 ? 0 : length] = 0;
        if (strncmp(path, root, root_length) != 0) return 0;
        inode = found.st_ino;
    } else if (inode == 0) {
        return 0;
    }
    if (fd < FDS_MAX && by_stdio[fd]) whole(fd, inode);
    put('s', inode, 0, path, strlen(path), NULL, 0, 0);
    return 1;
}

int fsync(int fd) { REAL(fsync); return synced(fd) ? 0 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return synced(fd) ? 0 : real(fd); }
