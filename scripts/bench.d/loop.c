/* The inner loops of scripts/bench: work of a few microseconds, measured without an interpreter in between.
 *
 *   loop save-truncate FILE COUNT SEED     open with O_TRUNC, write 200 lines, close
 *   loop save-rename   FILE COUNT SEED     write a temp file beside it, rename it over
 *   loop create|rename|unlink DIR COUNT    empty files; rename and unlink take what create left
 *   loop stat|missing|read DIR COUNT REPS  the files f00000 ... of DIR, each REPS times
 *   loop walk DIR                          every entry below, with its attributes
 *   loop worst DIR COUNT MILLIS            reads the files f00000 ... again and again for so long
 *   loop put FILE BYTES                    writes a new file of so many bytes, up to close and with it
 *   loop get FILE                          reads a file to its end
 *   loop append FILE                       appends a line, up to close and with it
 *
 * Prints nanoseconds, one number a line: each single save, or the mean of one operation for the others. `walk` prints
 * the number of entries on a second line; `worst` the longest single one; `put` and `append` the time before the close
 * and the time after it. A failed call ends the program with its reason and status 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINES = 200, READ_BYTES_MAX = 1 << 16 };

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "loop: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* What the file holds after save number `number`; scripts/bench computes the same to check it. */
static size_t content(char *out, size_t size, long number)
{
    size_t at = 0;
    for (int line = 1; line <= LINES; line++)
        at += snprintf(out + at, size - at, "line %d of a file that is saved again and again: %ld\n", line,
                       line == LINES / 2 ? number : 0L);
    return at;
}

static void write_whole(const char *path, const char *text, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        fail("open", path);
    if (write(fd, text, size) != (ssize_t)size)
        fail("write", path);
    if (close(fd) != 0)
        fail("close", path);
}

static void save(const char *path, long count, long seed, int by_rename)
{
    char text[1 << 15], temp[4096];
    long long *took = calloc(count, sizeof *took);
    if (took == NULL)
        fail("memory for", path);
    snprintf(temp, sizeof temp, "%s.tmp~", path);
    for (long i = 0; i < count; i++) {
        size_t size = content(text, sizeof text, seed + i);
        long long begun = now_ns();
        write_whole(by_rename ? temp : path, text, size);
        if (by_rename && rename(temp, path) != 0)
            fail("rename", path);
        took[i] = now_ns() - begun;
    }
    for (long i = 0; i < count; i++)
        printf("%lld\n", took[i]);
    free(took);
}

static void namespace_op(const char *op, const char *dir, long count)
{
    char from[4096], to[4096];
    long long begun = now_ns();
    for (long i = 0; i < count; i++) {
        snprintf(from, sizeof from, "%s/new%05ld", dir, i);
        snprintf(to, sizeof to, "%s/moved%05ld", dir, i);
        if (strcmp(op, "create") == 0) {
            int fd = open(from, O_WRONLY | O_CREAT | O_EXCL, 0644);
            if (fd < 0 || close(fd) != 0)
                fail(op, from);
        } else if (strcmp(op, "rename") == 0) {
            if (rename(from, to) != 0)
                fail(op, from);
        } else if (unlink(to) != 0) {
            fail(op, to);
        }
    }
    printf("%lld\n", (now_ns() - begun) / count);
}

static void look(const char *op, const char *dir, long count, long reps)
{
    static char buffer[READ_BYTES_MAX];
    char path[4096];
    struct stat st;
    long long begun = now_ns();
    for (long rep = 0; rep < reps; rep++)
        for (long i = 0; i < count; i++) {
            snprintf(path, sizeof path, "%s/%s%05ld", dir, strcmp(op, "missing") == 0 ? "none" : "f", i);
            if (strcmp(op, "stat") == 0) {
                if (stat(path, &st) != 0)
                    fail(op, path);
            } else if (strcmp(op, "missing") == 0) {
                if (stat(path, &st) == 0 || errno != ENOENT)
                    fail("found", path);
            } else {
                int fd = open(path, O_RDONLY);
                if (fd < 0 || read(fd, buffer, sizeof buffer) <= 0 || close(fd) != 0)
                    fail(op, path);
            }
        }
    printf("%lld\n", (now_ns() - begun) / (count * reps));
}

static void walk(char *dir)
{
    char *const roots[] = { dir, NULL };
    long entries = 0;
    long long begun = now_ns();
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL)
        fail("walk", dir);
    for (FTSENT *entry; (entry = fts_read(tree)) != NULL;) {
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS) {
            errno = entry->fts_errno;
            fail("walk", entry->fts_path);
        }
        if (entry->fts_info != FTS_DP)
            entries++;
    }
    fts_close(tree);
    printf("%lld\n%ld\n", (now_ns() - begun) / (entries ? entries : 1), entries);
}

/* Opens, reads and closes until the time is up: the longest that took. */
static void worst(const char *dir, long count, long millis)
{
    static char buffer[READ_BYTES_MAX];
    char path[4096];
    long long longest = 0, until = now_ns() + millis * 1000000LL;
    for (long i = 0; now_ns() < until; i = (i + 1) % count) {
        snprintf(path, sizeof path, "%s/f%05ld", dir, i);
        long long begun = now_ns();
        int fd = open(path, O_RDONLY);
        if (fd < 0 || read(fd, buffer, sizeof buffer) <= 0 || close(fd) != 0)
            fail("read", path);
        long long took = now_ns() - begun;
        longest = took > longest ? took : longest;
    }
    printf("%lld\n", longest);
}

static void put(const char *path, long bytes)
{
    static char piece[1 << 17];
    for (size_t i = 0; i < sizeof piece; i++)
        piece[i] = "0123456789abcde\n"[i % 16];
    long long begun = now_ns();
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0)
        fail("create", path);
    for (long at = 0; at < bytes; at += sizeof piece)
        if (write(fd, piece, sizeof piece) != (ssize_t)sizeof piece)
            fail("write", path);
    long long written = now_ns();
    if (close(fd) != 0)
        fail("close", path);
    printf("%lld\n%lld\n", written - begun, now_ns() - begun);
}

static void get(const char *path)
{
    static char piece[1 << 17];
    long long begun = now_ns();
    int fd = open(path, O_RDONLY);
    ssize_t got = 1;
    while (fd >= 0 && got > 0)
        got = read(fd, piece, sizeof piece);
    if (fd < 0 || got < 0 || close(fd) != 0)
        fail("read", path);
    printf("%lld\n", now_ns() - begun);
}

static void append(const char *path)
{
    long long begun = now_ns();
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0 || write(fd, "one more line\n", 14) != 14)
        fail("append to", path);
    long long written = now_ns();
    if (close(fd) != 0)
        fail("close", path);
    printf("%lld\n%lld\n", written - begun, now_ns() - begun);
}

int main(int argc, char **argv)
{
    const char *op = argc > 2 ? argv[1] : "";
    long count = argc > 3 ? atol(argv[3]) : 1, last = argc > 4 ? atol(argv[4]) : 1;
    if (strcmp(op, "save-truncate") == 0 || strcmp(op, "save-rename") == 0)
        save(argv[2], count, last, strcmp(op, "save-rename") == 0);
    else if (strcmp(op, "create") == 0 || strcmp(op, "rename") == 0 || strcmp(op, "unlink") == 0)
        namespace_op(op, argv[2], count);
    else if (strcmp(op, "stat") == 0 || strcmp(op, "missing") == 0 || strcmp(op, "read") == 0)
        look(op, argv[2], count, last);
    else if (strcmp(op, "walk") == 0)
        walk(argv[2]);
    else if (strcmp(op, "worst") == 0)
        worst(argv[2], count, last);
    else if (strcmp(op, "put") == 0)
        put(argv[2], count);
    else if (strcmp(op, "get") == 0)
        get(argv[2]);
    else if (strcmp(op, "append") == 0)
        append(argv[2]);
    else {
        fprintf(stderr, "usage: see the head of loop.c\n");
        return 2;
    }
    return 0;
}
