/* What else programs of one machine lock with. Each pair takes a lock and gives it back.
 *
 * peers flock|lockfile|sqlite|redis DIRECTORY THREADS MILLISECONDS same|own
 *
 * Each thread has a connection or a file descriptor of its own. Prints "ready", begins when it reads a line, and writes how
 * long each pair waited for its lock: nanoseconds, four bytes each. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CHECK(it) do { if (!(it)) { fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #it, strerror(errno)); exit(1); } } while (0)

static const char *peer, *directory;
static int is_same;
static uint64_t end_ns;
static pthread_barrier_t begin;

static uint64_t now_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct worker {
    int number, socket;
    char path[4200], name[64];
    sqlite3 *base;
    sqlite3_stmt *statements[6];
    uint32_t *waits;
    size_t room, kept;
};

/* As flock(1) does it: open, lock, close. */
static void with_flock(struct worker *it, uint64_t *got)
{
    int file = open(it->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    while (flock(file, LOCK_EX) != 0)
        CHECK(errno == EINTR);
    *got = now_ns();
    CHECK(close(file) == 0);
}

static void with_lock_file(struct worker *it, uint64_t *got)
{
    int file;
    useconds_t pause = 20;
    char text[32];
    while ((file = open(it->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) {
        CHECK(errno == EEXIST);
        usleep(pause);
        pause = pause < 500 ? 2 * pause : 500;
    }
    *got = now_ns();
    CHECK(write(file, text, (size_t)snprintf(text, sizeof text, "%d\n", (int)getpid())) > 0);
    CHECK(close(file) == 0 && unlink(it->path) == 0);
}

static int step(struct worker *it, int number)
{
    int result = sqlite3_step(it->statements[number]);
    sqlite3_reset(it->statements[number]);
    return result;
}

/* A transaction takes a lock if its row is not there or has ended, and one deletes the row. */
static void with_sqlite(struct worker *it, uint64_t *got)
{
    useconds_t pause = 20;
    for (;;) {
        int result;
        while ((result = step(it, 0)) == SQLITE_BUSY) {}
        CHECK(result == SQLITE_DONE);
        sqlite3_bind_text(it->statements[1], 1, it->name, -1, SQLITE_STATIC);
        CHECK(step(it, 1) == SQLITE_DONE);
        result = sqlite3_changes(it->base);
        CHECK(step(it, 2) == SQLITE_DONE);
        if (result == 1)
            break;
        usleep(pause);
        pause = pause < 500 ? 2 * pause : 500;
    }
    *got = now_ns();
    while (step(it, 3) == SQLITE_BUSY) {}
    sqlite3_bind_text(it->statements[4], 1, it->name, -1, SQLITE_STATIC);
    CHECK(step(it, 4) == SQLITE_DONE);
    CHECK(step(it, 5) == SQLITE_DONE);
}

static void open_base(struct worker *it)
{
    static const char *texts[6] = {
        "BEGIN IMMEDIATE",
        "INSERT INTO locks VALUES (?1, unixepoch() + 90, 'owner') ON CONFLICT (name) DO UPDATE SET ends = excluded.ends, "
        "owner = excluded.owner WHERE ends < unixepoch()",
        "COMMIT", "BEGIN IMMEDIATE", "DELETE FROM locks WHERE name = ?1 AND owner = 'owner'", "COMMIT",
    };
    int number;
    CHECK(sqlite3_open(it->path, &it->base) == SQLITE_OK);
    CHECK(sqlite3_busy_timeout(it->base, 60000) == SQLITE_OK);
    CHECK(sqlite3_exec(it->base, "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; CREATE TABLE IF NOT EXISTS locks "
                                 "(name TEXT PRIMARY KEY, ends INTEGER, owner TEXT) WITHOUT ROWID", NULL, NULL, NULL) == SQLITE_OK);
    for (number = 0; number < 6; number++)
        CHECK(sqlite3_prepare_v2(it->base, texts[number], -1, &it->statements[number], NULL) == SQLITE_OK);
}

static char *ask(struct worker *it, const char *request, size_t length, char *reply, size_t room)
{
    ssize_t received;
    CHECK(write(it->socket, request, length) == (ssize_t)length);
    CHECK((received = read(it->socket, reply, room - 1)) > 0);
    reply[received] = 0;
    return reply;
}

static void with_redis(struct worker *it, uint64_t *got)
{
    char request[512], reply[128];
    size_t name = strlen(it->name), length;
    useconds_t pause = 20;
    static const char script[] = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    length = (size_t)snprintf(request, sizeof request,
        "*6\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$5\r\nowner\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n90000\r\n", name, it->name);
    while (ask(it, request, length, reply, sizeof reply)[0] != '+') {
        usleep(pause);
        pause = pause < 500 ? 2 * pause : 500;
    }
    *got = now_ns();
    length = (size_t)snprintf(request, sizeof request, "*5\r\n$4\r\nEVAL\r\n$%zu\r\n%s\r\n$1\r\n1\r\n$%zu\r\n%s\r\n$5\r\nowner\r\n",
        sizeof script - 1, script, name, it->name);
    CHECK(strcmp(ask(it, request, length, reply, sizeof reply), ":1\r\n") == 0);
}

static void *run(void *argument)
{
    struct worker *it = argument;
    void (*pair)(struct worker *, uint64_t *);
    uint64_t asked, got;
    if (is_same)
        snprintf(it->name, sizeof it->name, "same");
    else
        snprintf(it->name, sizeof it->name, "%d-%d", (int)getpid(), it->number);
    /* Each peer has files of its own: those of flock stay, and would be lock files that nobody frees. */
    snprintf(it->path, sizeof it->path, "%s/%s-%s", directory, peer, strcmp(peer, "sqlite") == 0 ? "base" : it->name);
    if (strcmp(peer, "flock") == 0)
        pair = with_flock;
    else if (strcmp(peer, "lockfile") == 0)
        pair = with_lock_file;
    else if (strcmp(peer, "sqlite") == 0)
        pair = with_sqlite, open_base(it);
    else {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        pair = with_redis;
        snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", directory);
        CHECK((it->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
        CHECK(connect(it->socket, (struct sockaddr *)&address, sizeof address) == 0);
    }
    pthread_barrier_wait(&begin);
    for (;;) {
        asked = now_ns();
        if (asked >= end_ns)
            return NULL;
        pair(it, &got);
        if (it->kept == it->room)
            CHECK((it->waits = realloc(it->waits, (it->room = it->room ? 2 * it->room : 4096) * sizeof *it->waits)) != NULL);
        it->waits[it->kept++] = got - asked > UINT32_MAX ? UINT32_MAX : (uint32_t)(got - asked);
    }
}

int main(int count, char **arguments)
{
    int threads, number;
    struct worker *workers;
    pthread_t *ids;
    CHECK(count == 6);
    peer = arguments[1];
    directory = arguments[2];
    threads = atoi(arguments[3]);
    is_same = strcmp(arguments[5], "same") == 0;
    workers = calloc((size_t)threads, sizeof *workers);
    ids = calloc((size_t)threads, sizeof *ids);
    CHECK(workers != NULL && ids != NULL && pthread_barrier_init(&begin, NULL, (unsigned)threads + 1) == 0);
    for (number = 0; number < threads; number++) {
        workers[number].number = number;
        CHECK(pthread_create(&ids[number], NULL, run, &workers[number]) == 0);
    }
    /* The other program says when all processes are ready. */
    puts("ready");
    fflush(stdout);
    CHECK(getchar() != EOF);
    end_ns = now_ns() + (uint64_t)atoi(arguments[4]) * 1000000u;
    pthread_barrier_wait(&begin);
    for (number = 0; number < threads; number++) {
        CHECK(pthread_join(ids[number], NULL) == 0);
        CHECK(fwrite(workers[number].waits, sizeof(uint32_t), workers[number].kept, stdout) == workers[number].kept);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
