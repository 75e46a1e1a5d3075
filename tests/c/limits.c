/* A store in a process with tight limits. Each is an error that the program receives, and none kills it.
 *
 * stacks <store> <bytes>: all calls come from threads with stacks of this size.
 * little <store>: the stack is too small for any call.
 * sizes <store>: files may not grow (SIGXFSZ), as under `ulimit -f`. */
#define _XOPEN_SOURCE 700
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static char uri[4096];
static struct dlm_manager *manager;

static void *calls(void *unused)
{
    struct dlm_error *error = NULL;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct dlm_latch *latch;
    char name[64];
    bool open = false;

    if (manager == NULL)
        OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "limits", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    OK(dlm_lease_renew(lease, DLM_DEFAULT, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    if (unused != NULL) {
        snprintf(name, sizeof name, "limits-%ld", (long)getpid());
        OK(dlm_manager_latch(manager, name, DLM_LEVEL_XDC, DLM_LATCH_COUNT_DOWN, 600000, &latch, &error));
        OK(dlm_latch_get_or_create(latch, 1, NULL, &error));
        OK(dlm_latch_count_down(latch, &error));
        OK(dlm_latch_await_open(latch, DLM_FOREVER, NULL, &open, &error));
        CHECK(open);
        dlm_latch_free(latch);
    }
    return NULL;
}

static void *one_call(void *unused)
{
    struct dlm_error *error = NULL;
    CHECK(dlm_manager_open(uri, NULL, &manager, &error) == DLM_INTERNAL_ERROR);
    CHECK(strstr(dlm_error_message(error), "KiB of stack left") != NULL);
    dlm_error_free(error);
    return unused;
}

static void little(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 20480) == 0);
    CHECK(pthread_create(&thread, &attributes, one_call, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void stacks(size_t bytes, bool with_latches)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int round;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, bytes) == 0);
    for (round = 0; round < 2; round++) {
        CHECK(pthread_create(&thread, &attributes, calls, with_latches && round == 0 ? uri : NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    dlm_manager_free(manager);
}

static void set_limit(rlim_t bytes)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* Expects an error that names the cause, and frees it. */
static void is_too_large(enum dlm_status status, struct dlm_error **error)
{
    if (status == DLM_OK || strstr(dlm_error_message(*error), "File too large") == NULL) {
        fprintf(stderr, "%s\n", dlm_error_message(*error));
        abort();
    }
    dlm_error_free(*error);
    *error = NULL;
}

static void sizes(const char *directory)
{
    struct dlm_error *error = NULL;
    struct dlm_manager *other;
    struct dlm_lock *lock, *free_lock;
    struct dlm_lease *lease, *new_lease;
    char new_uri[4200];
    sigset_t pending;

    CHECK(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
    /* Only stores of groups are sure to be written by calls. */
    snprintf(uri, sizeof uri, "%s-group?client=limits&farm=dc1&group=on", directory);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "limits", DLM_LEVEL_XDC, &lock, &error));
    OK(dlm_manager_lock(manager, "free", DLM_LEVEL_XDC, &free_lock, &error));
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    set_limit(1);
    is_too_large(dlm_lease_renew(lease, DLM_DEFAULT, &error), &error);
    is_too_large(dlm_lock_try_acquire(free_lock, NULL, &new_lease, &error), &error);
    snprintf(new_uri, sizeof new_uri, "%s-new?client=limits&farm=dc1", directory);
    is_too_large(dlm_manager_open(new_uri, NULL, &other, &error), &error);
    CHECK(sigpending(&pending) == 0 && !sigismember(&pending, SIGXFSZ));
    set_limit(RLIM_INFINITY);
    OK(dlm_lease_renew(lease, DLM_DEFAULT, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    OK(dlm_manager_open(new_uri, NULL, &other, &error));
    dlm_manager_free(other);
    OK(dlm_lock_try_acquire(free_lock, NULL, &new_lease, &error));
    OK(dlm_lease_release(new_lease, NULL, &error));
    dlm_lease_free(new_lease);
    dlm_lock_free(free_lock);
    dlm_lease_free(lease);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    snprintf(uri, sizeof uri, "%s%cclient=limits&farm=dc1&poll=50ms&timeout=60s", argv[2],
             strchr(argv[2], '?') ? '&' : '?');
    if (strcmp(argv[1], "stacks") == 0)
        stacks((size_t)atol(argv[3]), argc > 4);
    else if (strcmp(argv[1], "little") == 0)
        little();
    else
        sizes(argv[2]);
    CHECK(dlm_handles_open() == 0);
    return 0;
}
