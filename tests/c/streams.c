/* A program that has closed its standard streams, as daemons do. What it writes to them fails, and never reaches a
 * file or a socket of the library. The library leaves their numbers free.
 *
 * Arguments: the store, and how many rounds with new connections. With a third argument, also latches. */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

static struct dlm_error *error;
static atomic_bool is_over;
static atomic_ulong rounds;
/* What was found under one of the three numbers. Read after the thread has ended. */
static char found[512];

/* Uses the closed streams all the time. */
static void *use(void *unused)
{
    char byte;
    int number;
    while (!atomic_load(&is_over) && found[0] == 0) {
        for (number = 1; number <= 2; number++)
            if (write(number, "output\n", 7) != -1 || errno != EBADF)
                snprintf(found, sizeof found, "descriptor %d took output: %s", number, strerror(errno));
        if (read(0, &byte, 1) != -1 || errno != EBADF)
            snprintf(found, sizeof found, "descriptor 0 had input: %s", strerror(errno));
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

static bool are_free(void)
{
    int number;
    for (number = 0; number <= 2; number++)
        if (fcntl(number, F_GETFD) != -1)
            return false;
    return true;
}

/* Background threads of the library may be opening something just now. */
static void until_free(void)
{
    int looks;
    for (looks = 0; !are_free(); looks++) {
        CHECK(looks < 60000);
        sleep_us(1000);
    }
}

/* Breaks all connections, so that the next calls need new ones. */
static void break_connections(void)
{
    int number, type;
    socklen_t length;
    struct sockaddr_storage peer;
    for (number = 3; number < 1024; number++) {
        length = sizeof type;
        if (getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM)
            continue;
        length = sizeof peer;
        if (getpeername(number, (struct sockaddr *)&peer, &length) == 0 && peer.ss_family != AF_UNIX)
            shutdown(number, SHUT_RDWR);
    }
}

static void *await_lock(void *lock)
{
    struct dlm_error *failure = NULL;
    struct dlm_lease *lease;
    CHECK(dlm_lock_acquire(lock, NULL, &lease, &failure) == DLM_OK);
    CHECK(dlm_lease_release(lease, NULL, &failure) == DLM_OK);
    dlm_lease_free(lease);
    return NULL;
}

static void locks(struct dlm_manager *manager)
{
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    pthread_t waiting;
    int32_t fd;

    OK(dlm_manager_lock(manager, "streams", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    CHECK(fd > 2);
    CHECK(pthread_create(&waiting, NULL, await_lock, lock) == 0);
    sleep_us(20000);
    OK(dlm_lease_renew(lease, DLM_DEFAULT, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    CHECK(pthread_join(waiting, NULL) == 0);
    dlm_lease_free(lease);
    dlm_lock_free(lock);
}

static void latches(struct dlm_manager *manager, int round)
{
    struct dlm_latch *latch;
    struct dlm_watch *watch;
    char name[64];
    bool open = false;

    snprintf(name, sizeof name, "streams-%ld-%d", (long)getpid(), round);
    OK(dlm_manager_latch(manager, name, DLM_LEVEL_XDC, DLM_LATCH_COUNT_DOWN, 600000, &latch, &error));
    OK(dlm_latch_create(latch, 1, &error));
    OK(dlm_latch_watch(latch, &watch, &error));
    sleep_us(20000);
    OK(dlm_latch_count_down(latch, &error));
    OK(dlm_latch_await_open(latch, DLM_FOREVER, NULL, &open, &error));
    CHECK(open);
    dlm_watch_free(watch);
    dlm_latch_free(latch);
}

static void descriptors(void)
{
    struct dlm_cancel *cancel = dlm_cancel_new();
    struct dlm_completions *completions = dlm_completions_new();
    int32_t fd;
    OK(dlm_cancel_signal_fd(cancel, &fd, &error));
    CHECK(fd > 2);
    OK(dlm_completions_fd(completions, &fd, &error));
    CHECK(fd > 2);
    dlm_cancel_free(cancel);
    dlm_completions_free(completions);
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_texts *findings;
    pthread_t user;
    char uri[4096];
    bool is_safe;
    int round;

    CHECK(argc >= 3);
    CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    /* For failed checks. */
    stderr = fdopen(fcntl(2, F_DUPFD, 500), "w");
    CHECK(stderr != NULL && setvbuf(stderr, NULL, _IONBF, 0) == 0);
    close(0);
    close(1);
    close(2);
    CHECK(pthread_create(&user, NULL, use, NULL) == 0);

    snprintf(uri, sizeof uri, "%s%cclient=streams&farm=dc1&poll=50ms&retry=50ms&timeout=60s", argv[1],
             strchr(argv[1], '?') ? '&' : '?');
    for (round = 0; round < atoi(argv[2]); round++) {
        OK(dlm_manager_open(uri, NULL, &manager, &error));
        until_free();
        locks(manager);
        break_connections();
        locks(manager);
        until_free();
        if (argc > 3)
            latches(manager, round);
        if (round == 0)
            OK(dlm_manager_diagnose(manager, &findings, &is_safe, &error));
        if (round == 0)
            dlm_texts_free(findings);
        descriptors();
        dlm_manager_free(manager);
        until_free();
        CHECK(dlm_handles_open() == 0);
    }
    CHECK(atomic_load(&rounds) > 0);
    atomic_store(&is_over, true);
    CHECK(pthread_join(user, NULL) == 0);
    if (found[0] != 0) {
        fprintf(stderr, "%s\n", found);
        return 1;
    }
    return 0;
}
