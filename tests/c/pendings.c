/* Acquisitions that do not block: their results, descriptors and cancellation, also from a signal handler. */
#define _XOPEN_SOURCE 700
#include "check.h"

#include "../../go/dlm_go.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

enum { LONG_MS = 60000, CROWD = 300 };

static struct dlm_error *error;
static int32_t signal_fd = -1;
static volatile sig_atomic_t errno_kept;

static void on_signal(int number)
{
    (void)number;
    errno = 4711;
    dlm_cancel_trigger_fd(signal_fd);
    errno_kept = errno == 4711;
}

static void wait_for(int32_t fd)
{
    struct pollfd polled = {0};
    polled.fd = fd;
    polled.events = POLLIN;
    CHECK(poll(&polled, 1, LONG_MS) == 1 && polled.revents == POLLIN);
}

static bool is_readable(int32_t fd)
{
    struct pollfd polled = {0};
    polled.fd = fd;
    polled.events = POLLIN;
    return poll(&polled, 1, 0) == 1;
}

static struct dlm_pending *start(struct dlm_lock *lock, const struct dlm_cancel *cancel)
{
    struct dlm_pending *pending;
    OK(dlm_lock_acquire_start(lock, HOW_WITH(DLM_DEFAULT, DLM_FOREVER, 0, cancel), &pending, &error));
    return pending;
}

static int32_t fd_of(struct dlm_pending *pending)
{
    int32_t fd, again;
    OK(dlm_pending_fd(pending, &fd, &error));
    OK(dlm_pending_fd(pending, &again, &error));
    CHECK(fd >= 0 && fd == again);
    return fd;
}

static struct dlm_lease *lease_of(struct dlm_pending *pending)
{
    struct dlm_lease *lease;
    wait_for(fd_of(pending));
    OK(dlm_pending_take(pending, &lease, &error));
    CHECK(lease != NULL);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_pending_take(pending, &(struct dlm_lease *){NULL}, &error));
    dlm_pending_free(pending);
    return lease;
}

/* A lock that is held, released, cancelled and timed out. */
static void results(struct dlm_lock *lock)
{
    struct dlm_lease *lease = lease_of(start(lock, NULL)), *next;
    struct dlm_pending *first = start(lock, NULL), *second = start(lock, NULL), *brief;
    int32_t fd = fd_of(second);

    OK(dlm_pending_take(first, &next, &error));
    CHECK(next == NULL && !is_readable(fd_of(first)));
    OK(dlm_lock_acquire_start(lock, HOW(DLM_DEFAULT, 20), &brief, &error));
    wait_for(fd_of(brief));
    EXPECT(DLM_LOCK_UNAVAILABLE, dlm_pending_take(brief, &next, &error));
    CHECK(next == NULL);
    dlm_pending_free(brief);
    OK(dlm_pending_cancel(second, &error));
    CHECK(is_readable(fd));
    EXPECT(DLM_CANCELLED, dlm_pending_take(second, &next, &error));
    OK(dlm_pending_cancel(second, &error));
    dlm_pending_free(second);
    OK(dlm_lease_release(lease, NULL, &error));
    dlm_lease_free(lease);
    lease = lease_of(first);
    CHECK(dlm_lease_fence(lease) > 0 && dlm_lease_state(lease) == DLM_STATE_HELD);
    dlm_lease_free(lease);

    OK(dlm_lock_acquire_start(lock, HOW_WITH(DLM_DEFAULT, DLM_DEFAULT, DLM_FOREVER, NULL), &first, &error));
    lease = lease_of(first);
    CHECK(dlm_lease_state(lease) == DLM_STATE_RENEWING);
    dlm_lease_free(lease);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_acquire_start(lock, HOW_WITH(DLM_DEFAULT, 0, -3, NULL), &first, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lock_acquire_start(lock, HOW(0, 0), &first, &error));
    CHECK(first == NULL);
}

/* The caller sends the first request itself. */
static void asked_here(struct dlm_lock *lock)
{
    struct dlm_pending *first, *second;
    struct dlm_lease *lease;
    bool turn;

    OK(dlm_lock_acquire_start_here(lock, HOW(DLM_DEFAULT, DLM_FOREVER), &first, &turn, &error));
    CHECK(turn);
    OK(dlm_lock_acquire_start_here(lock, HOW(DLM_DEFAULT, DLM_FOREVER), &second, &turn, &error));
    CHECK(!turn);
    OK(dlm_pending_take(first, &lease, &error));
    CHECK(lease == NULL);
    OK(dlm_pending_ask(second, &error)); /* does nothing: it is not its turn */
    OK(dlm_pending_ask(first, &error));
    OK(dlm_pending_take(first, &lease, &error));
    CHECK(lease != NULL);
    OK(dlm_pending_ask(first, &error));
    dlm_pending_free(first);
    OK(dlm_pending_take(second, &(struct dlm_lease *){NULL}, &error));
    dlm_lease_free(lease);
    dlm_lease_free(lease_of(second));

    /* The turn of one that is freed goes to the next. */
    OK(dlm_lock_acquire_start_here(lock, HOW(DLM_DEFAULT, DLM_FOREVER), &first, &turn, &error));
    second = start(lock, NULL);
    dlm_pending_free(first);
    dlm_lease_free(lease_of(second));
}

/* Waits without a descriptor, for acquisitions and for leases. */
static void *frees_soon(void *completions)
{
    sleep_us(20000);
    dlm_completions_free(completions);
    return NULL;
}

static void waited_for(struct dlm_manager *manager)
{
    struct dlm_completions *completions = dlm_completions_new(), *others = dlm_completions_new();
    struct dlm_completion what;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct dlm_pending *pending;
    pthread_t thread;
    bool found;

    OK(dlm_completions_wait(completions, 0, &what, sizeof what, &found, &error));
    CHECK(!found && what.kind == 0);
    OK(dlm_completions_wait(completions, 1, &what, sizeof what, &found, &error));
    CHECK(!found);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_completions_wait(completions, 0, &what, sizeof what - 1, &found, &error));
    OK(dlm_manager_lock(manager, "waited", DLM_LEVEL_XDC, &lock, &error));
    pending = start(lock, NULL);
    OK(dlm_pending_notify(pending, completions, 4, &error));
    OK(dlm_completions_wait(completions, DLM_FOREVER, &what, sizeof what, &found, &error));
    CHECK(found && what.tag == 4 && what.kind == DLM_COMPLETION_FINISHED);
    lease = lease_of(pending);

    /* A lease that was released. */
    OK(dlm_lease_notify(lease, completions, 5, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_notify(lease, completions, 5, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_lease_notify(lease, others, 5, &error));
    OK(dlm_completions_wait(completions, 0, &what, sizeof what, &found, &error));
    CHECK(!found);
    OK(dlm_lease_release(lease, NULL, &error));
    OK(dlm_completions_wait(completions, DLM_FOREVER, &what, sizeof what, &found, &error));
    CHECK(found && what.tag == 5 && what.kind == DLM_COMPLETION_ENDED && what.lost_reason == DLM_LOST_NOT);
    dlm_lease_free(lease);

    /* One that expires. */
    OK(dlm_lock_acquire(lock, HOW(1500, DLM_DEFAULT), &lease, &error));
    OK(dlm_lease_notify(lease, completions, 6, &error));
    OK(dlm_completions_wait(completions, DLM_FOREVER, &what, sizeof what, &found, &error));
    CHECK(what.tag == 6 && what.kind == DLM_COMPLETION_ENDED && what.lost_reason == DLM_LOST_EXPIRED);
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    dlm_lease_free(lease);

    /* One that is kept alive until its longest time is nearly over. */
    OK(dlm_lock_acquire(lock, HOW_WITH(1500, DLM_DEFAULT, 1800, NULL), &lease, &error));
    OK(dlm_lease_notify(lease, completions, 7, &error));
    OK(dlm_completions_wait(completions, DLM_FOREVER, &what, sizeof what, &found, &error));
    /* On a machine that stood still for a while, it has ended by now. */
    CHECK(what.tag == 7 && (what.kind == DLM_COMPLETION_AT_RISK || what.kind == DLM_COMPLETION_ENDED));
    while (what.kind == DLM_COMPLETION_AT_RISK)
        OK(dlm_completions_wait(completions, DLM_FOREVER, &what, sizeof what, &found, &error));
    CHECK(what.tag == 7 && what.kind == DLM_COMPLETION_ENDED && what.lost_reason != DLM_LOST_NOT);
    dlm_lease_free(lease);

    /* The tag of a lease that was freed does not come. */
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    OK(dlm_lease_notify(lease, completions, 8, &error));
    dlm_lease_free(lease);
    OK(dlm_lock_acquire(lock, NULL, &lease, &error));
    OK(dlm_lease_notify(lease, completions, 9, &error));
    dlm_lease_free(lease);
    CHECK(!dlm_completions_next(completions, &what, sizeof what));

    CHECK(pthread_create(&thread, NULL, frees_soon, completions) == 0);
    EXPECT(DLM_CLOSED, dlm_completions_wait(completions, DLM_FOREVER, &what, sizeof what, &found, &error));
    CHECK(!found && what.kind == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    dlm_completions_free(others);
    dlm_lock_free(lock);
}

/* One descriptor for many. */
static void crowd(struct dlm_manager *manager)
{
    struct dlm_completions *completions = dlm_completions_new();
    struct dlm_pending *pendings[CROWD];
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    struct dlm_completion what;
    int32_t fd;
    uint64_t i;

    OK(dlm_manager_lock(manager, "crowd", DLM_LEVEL_XDC, &lock, &error));
    CHECK(!dlm_completions_next(completions, &what, sizeof what) && what.tag == 0 && what.kind == 0);
    OK(dlm_completions_fd(completions, &fd, &error));
    CHECK(!is_readable(fd));
    for (i = 0; i < CROWD; i++) {
        pendings[i] = start(lock, NULL);
        OK(dlm_pending_notify(pendings[i], completions, i, &error));
        EXPECT(DLM_INVALID_ARGUMENT, dlm_pending_notify(pendings[i], completions, i, &error));
    }
    for (i = 0; i < CROWD; i++) {
        wait_for(fd);
        CHECK(dlm_completions_next(completions, &what, sizeof what) && what.tag == i);
        CHECK(what.kind == DLM_COMPLETION_FINISHED && what.lost_reason == DLM_LOST_NOT);
        OK(dlm_pending_take(pendings[what.tag], &lease, &error));
        dlm_pending_free(pendings[what.tag]);
        CHECK(lease != NULL);
        dlm_lease_free(lease);
    }
    CHECK(!dlm_completions_next(completions, &what, sizeof what) && !is_readable(fd));
    CHECK(!dlm_completions_next(completions, NULL, sizeof what) && !dlm_completions_next(NULL, &what, sizeof what));
    CHECK(!dlm_completions_next(completions, &what, 8));

    /* The tag of one that was freed does not come. */
    lease = lease_of(start(lock, NULL));
    pendings[0] = start(lock, NULL);
    OK(dlm_pending_cancel(pendings[0], &error));
    OK(dlm_pending_notify(pendings[0], completions, 7, &error));
    CHECK(is_readable(fd));
    dlm_pending_free(pendings[0]);
    CHECK(!is_readable(fd) && !dlm_completions_next(completions, &what, sizeof what));
    dlm_lease_free(lease);
    dlm_completions_free(completions);
    dlm_lock_free(lock);
}

/* A signal handler cancels a pending acquisition, and then a thread that blocks. */
static void signals(struct dlm_lock *lock)
{
    struct dlm_cancel *cancel = dlm_cancel_new();
    struct dlm_lease *held = lease_of(start(lock, NULL)), *lease;
    struct dlm_pending *pending = start(lock, cancel);
    struct sigaction action;
    int32_t again;

    OK(dlm_cancel_signal_fd(cancel, &signal_fd, &error));
    OK(dlm_cancel_signal_fd(cancel, &again, &error));
    CHECK(signal_fd >= 0 && signal_fd == again);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0 && errno_kept);
    wait_for(fd_of(pending));
    EXPECT(DLM_CANCELLED, dlm_pending_take(pending, &lease, &error));
    dlm_pending_free(pending);
    EXPECT(DLM_CANCELLED, dlm_lock_acquire(lock, HOW_WITH(DLM_DEFAULT, DLM_DEFAULT, 0, cancel), &lease, &error));
    dlm_cancel_free(cancel);

    /* The handler runs in this thread, while it blocks. */
    cancel = dlm_cancel_new();
    OK(dlm_cancel_signal_fd(cancel, &signal_fd, &error));
    action.sa_handler = on_signal;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    {
        struct sigevent event;
        struct itimerspec soon = {{0, 0}, {0, 50000000}};
        timer_t timer;
        memset(&event, 0, sizeof event);
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGALRM;
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
        CHECK(timer_settime(timer, 0, &soon, NULL) == 0);
        EXPECT(DLM_CANCELLED, dlm_lock_acquire(lock, HOW_WITH(DLM_DEFAULT, DLM_FOREVER, 0, cancel), &lease, &error));
        CHECK(timer_delete(timer) == 0);
    }
    action.sa_handler = SIG_IGN;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    dlm_cancel_free(cancel);
    dlm_cancel_trigger_fd(-1);

    /* Never triggered: its thread ends with it. */
    cancel = dlm_cancel_new();
    OK(dlm_cancel_signal_fd(cancel, &signal_fd, &error));
    dlm_cancel_free(cancel);
    dlm_lease_free(held);
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *held, *lease;
    struct dlm_pending *pending, *dropped;
    char uri[4096];

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=pendings&retry=1h&ttl=10m&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_XDC, &lock, &error));
    results(lock);
    asked_here(lock);
    crowd(manager);
    waited_for(manager);
    signals(lock);

    /* Closing ends them. */
    held = lease_of(start(lock, NULL));
    pending = start(lock, NULL);
    dropped = start(lock, NULL);
    dlm_pending_free(dropped);
    OK(dlm_manager_close(manager, &error));
    CHECK(is_readable(fd_of(pending)));
    EXPECT(DLM_CLOSED, dlm_pending_take(pending, &lease, &error));
    EXPECT(DLM_CLOSED, dlm_lock_acquire_start(lock, HOW(DLM_DEFAULT, 0), &dropped, &error));
    dlm_pending_free(pending);
    dlm_lease_free(held);
    dlm_lock_free(lock);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}
