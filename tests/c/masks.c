/* The library's threads block signals and so leave them to the program, also if the calling thread does not block
 * them. A second store, whose writes are in doubt, adds a thread that frees locks in the background. */
#define _XOPEN_SOURCE 700
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define KILLS 200

static struct dlm_error *error;

/* Signals that a thread causes itself by a fault. */
static const int own[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS};

static bool may_be_open(int number)
{
    size_t at;
    for (at = 0; at < sizeof own / sizeof own[0]; at++)
        if (own[at] == number)
            return true;
    /* The C library reserves the signals from 32 to SIGRTMIN. */
    return number == SIGKILL || number == SIGSTOP || (number >= 32 && number < SIGRTMIN);
}

/* Reads the name of a thread and the signals that it blocks. Returns false if the thread has ended or does not belong
 * to the library. */
static bool look(const char *thread, char name[64], unsigned long long *blocked)
{
    char path[512], line[256];
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    name[0] = 0;
    *blocked = 0;
    if (thread[0] == '.' || (file = fopen(path, "r")) == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "Name: %63s", name);
        sscanf(line, "SigBlk: %llx", blocked);
    }
    fclose(file);
    return strncmp(name, "dlm-", 4) == 0;
}

static bool blocks_its_own(unsigned long long blocked)
{
    size_t at;
    for (at = 0; at < sizeof own / sizeof own[0]; at++)
        if (blocked >> (own[at] - 1) & 1)
            return true;
    return false;
}

/* Checks the blocked signals of all threads of the library. Returns how many there are. */
static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    char name[64];
    unsigned long long blocked;
    int count = 0, number, looks;

    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        bool there = look(task->d_name, name, &blocked);
        /* The C library, or a sanitizer, blocks all signals in a thread that is about to end. */
        for (looks = 0; there && blocks_its_own(blocked); looks++) {
            CHECK(looks < 60000);
            sleep_us(1000);
            there = look(task->d_name, name, &blocked);
        }
        if (!there)
            continue;
        count++;
        for (number = 1; number <= SIGRTMAX; number++)
            if (!may_be_open(number) && !(blocked >> (number - 1) & 1)) {
                fprintf(stderr, "%s does not block signal %d: %llx\n", name, number, blocked);
                abort();
            }
    }
    closedir(tasks);
    return count;
}

/* Waits until the library has this number of threads. A thread sets its name some time after it was started. */
static void until_threads(int wanted)
{
    int looks;
    for (looks = 0; threads() < wanted; looks++) {
        CHECK(looks < 60000);
        sleep_us(1000);
    }
}

static void *await(void *latch)
{
    struct dlm_error *failure;
    bool open;
    CHECK(dlm_latch_await_open(latch, DLM_FOREVER, NULL, &open, &failure) == DLM_OK && open);
    return NULL;
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager, *doubtful = NULL;
    struct dlm_lock *lock = NULL;
    struct dlm_lease *lease;
    struct dlm_latch *latch;
    struct dlm_watch *watch;
    pthread_t waiting;
    sigset_t before, set, now;
    char uri[4096];
    enum dlm_status status;
    int round, number, tries = 0;

    CHECK(argc == 2 || argc == 3);
    sigemptyset(&before);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);

    snprintf(uri, sizeof uri, "%s?client=masks&farm=dc1&poll=50ms&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_initialize_latches(manager, &error));
    OK(dlm_manager_latch(manager, "l", DLM_LEVEL_XDC, DLM_LATCH_COUNT_DOWN, 3600000, &latch, &error));
    OK(dlm_latch_create(latch, 1, &error));
    OK(dlm_latch_watch(latch, &watch, &error));
    if (argc == 3) {
        OK(dlm_manager_open(argv[2], NULL, &doubtful, &error));
        OK(dlm_manager_lock(doubtful, "a", DLM_LEVEL_XDC, &lock, &error));
        /* On a busy machine the time may be over before the request is sent. */
        do {
            CHECK(tries++ < 100);
            status = dlm_lock_try_acquire(lock, NULL, &lease, &error);
            CHECK(error != NULL);
            dlm_error_free(error);
            error = NULL;
        } while (status == DLM_CONNECTION_ERROR || status == DLM_RETRIES_EXHAUSTED);
        CHECK(status == DLM_IN_DOUBT);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &now) == 0);
    for (number = 1; number <= SIGRTMAX; number++)
        CHECK(sigismember(&now, number) != 1);
    /* One thread reads latches. A thread of the other manager frees the lock. */
    until_threads(argc == 3 ? 2 : 1);

    /* Only now, because threads that the library starts inherit the mask of this thread. */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(pthread_create(&waiting, NULL, await, latch) == 0);
    for (round = 0; round < KILLS; round++) {
        CHECK(kill(getpid(), SIGTERM) == 0);
        sleep_us(1000);
        CHECK(sigwait(&set, &number) == 0 && number == SIGTERM);
    }
    until_threads(argc == 3 ? 2 : 1);

    OK(dlm_latch_count_down(latch, &error));
    CHECK(pthread_join(waiting, NULL) == 0);
    dlm_watch_free(watch);
    dlm_latch_free(latch);
    dlm_lock_free(lock);
    dlm_manager_free(doubtful);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}
