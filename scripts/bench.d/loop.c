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
 *   loop log FILE COUNT                    appends so many lines to one file, which stays open
 *   loop append FILE...                    appends a line to each, up to close and with it
 *   loop replace FILE SOURCE               writes the bytes of SOURCE over FILE, up to close and with it
 *   loop beside save FILE LEAST SEED [COMMAND...]   saves in place again and again while the command runs
 *   loop beside read DIR LEAST COUNT [COMMAND...]   opens, reads and closes the files f00000 ... meanwhile
 *
 * Prints nanoseconds, one number a line: each single save, or the mean of one operation for the others. `walk` prints
 * the number of entries on a second line; `worst` the longest single one; `put`, `append` and `replace` the time before
 * the close and the time after it; `beside` how often it has started the command, then each single operation. It starts
 * the command again where that ends before there are LEAST operations. A failed call or command ends the program with
 * its reason and status 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINES = 200, READ_BYTES_MAX = 1 << 16 };
/* Between two operations of `beside`: who measures must not take one of two cores for itself. */
static const struct timespec PAUSE = { .tv_nsec = 1000000 };

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

static long long save_once(const char *path, long number, int by_rename)
{
    char text[1 << 15], temp[4096];
    size_t size = content(text, sizeof text, number);
    snprintf(temp, sizeof temp, "%s.tmp~", path);
    long long begun = now_ns();
    write_whole(by_rename ? temp : path, text, size);
    if (by_rename && rename(temp, path) != 0)
        fail("rename", path);
    return now_ns() - begun;
}

static void read_once(const char *path)
{
    static char buffer[READ_BYTES_MAX];
    int fd = open(path, O_RDONLY);
    if (fd < 0 || read(fd, buffer, sizeof buffer) <= 0 || close(fd) != 0)
        fail("read", path);
}

static void save(const char *path, long count, long seed, int by_rename)
{
    long long *took = calloc(count, sizeof *took);
    if (took == NULL)
        fail("memory for", path);
    for (long i = 0; i < count; i++)
        took[i] = save_once(path, seed + i, by_rename);
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
                read_once(path);
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
    char path[4096];
    long long longest = 0, until = now_ns() + millis * 1000000LL;
    for (long i = 0; now_ns() < until; i = (i + 1) % count) {
        snprintf(path, sizeof path, "%s/f%05ld", dir, i);
        long long begun = now_ns();
        read_once(path);
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

static void log_lines(const char *path, long count)
{
    static const char line[] = "one more line\n";
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0)
        fail("open", path);
    long long begun = now_ns();
    for (long i = 0; i < count; i++)
        if (write(fd, line, sizeof line - 1) != sizeof line - 1)
            fail("append to", path);
    printf("%lld\n", (now_ns() - begun) / count);
    if (close(fd) != 0)
        fail("close", path);
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

static void replace(const char *path, const char *source)
{
    struct stat st;
    int from = open(source, O_RDONLY);
    if (from < 0 || fstat(from, &st) != 0)
        fail("open", source);
    char *text = malloc(st.st_size);
    if (text == NULL || read(from, text, st.st_size) != st.st_size)
        fail("read", source);
    long long begun = now_ns();
    int fd = open(path, O_WRONLY | O_TRUNC);
    if (fd < 0 || write(fd, text, st.st_size) != st.st_size)
        fail("write", path);
    long long written = now_ns();
    if (close(fd) != 0)
        fail("close", path);
    printf("%lld\n%lld\n", written - begun, now_ns() - begun);
    free(text);
}

/* Ends with us, however we end. What it prints is not ours. */
static pid_t start(char *const *command)
{
    pid_t child = fork();
    if (child < 0)
        fail("fork for", command[0]);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execvp(command[0], command);
        fail("start", command[0]);
    }
    return child;
}

static int is_running(pid_t child, const char *command)
{
    int status = 0;
    pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended < 0)
        fail("wait for", command);
    if (status != 0) {
        fprintf(stderr, "loop: %s: wait status %d\n", command, status);
        exit(1);
    }
    return ended == 0;
}

static long long timed(int saves, const char *path, long number, long names)
{
    char name[4096];
    if (saves)
        return save_once(path, number, 0);
    snprintf(name, sizeof name, "%s/f%05ld", path, number % names);
    long long begun = now_ns();
    read_once(name);
    return now_ns() - begun;
}

static void beside(int saves, const char *path, long least, long last, char *const *command)
{
    long long *took = NULL;
    long room = 0, count = 0;
    pid_t child = command[0] != NULL ? start(command) : 0;
    long starts = child != 0;
    for (;;) {
        if (child != 0 && !is_running(child, command[0]))
            child = 0;
        if (child == 0 && count >= least)
            break;
        if (child == 0 && command[0] != NULL) {
            child = start(command);
            starts++;
        }
        if (count == room && (took = reallocarray(took, room += 4096, sizeof *took)) == NULL)
            fail("memory for", path);
        took[count] = timed(saves, path, saves ? last + count : count, last);
        count++;
        nanosleep(&PAUSE, NULL);
    }
    printf("%ld\n", starts);
    for (long i = 0; i < count; i++)
        printf("%lld\n", took[i]);
    free(took);
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
    else if (strcmp(op, "log") == 0)
        log_lines(argv[2], count);
    else if (strcmp(op, "append") == 0)
        for (int i = 2; i < argc; i++)
            append(argv[i]);
    else if (strcmp(op, "replace") == 0 && argc == 4)
        replace(argv[2], argv[3]);
    else if (strcmp(op, "beside") == 0 && argc > 5)
        beside(strcmp(argv[2], "save") == 0, argv[3], last, atol(argv[5]), argv + 6);
    else {
        fprintf(stderr, "usage: see the head of loop.c\n");
        return 2;
    }
    return 0;
}
