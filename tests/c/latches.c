/* Every function for latches, on the given store: counts, names, waiting, and the descriptor of a watch. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>
#include <pthread.h>

static struct dlm_error *error;

static int readable(int fd, int wait_ms)
{
    struct pollfd polled = {0, POLLIN, 0};
    polled.fd = fd;
    return poll(&polled, 1, wait_ms);
}

static struct dlm_latch *latch_of(struct dlm_manager *manager, const char *id, int32_t kind)
{
    struct dlm_latch *latch;
    OK(dlm_manager_latch(manager, id, DLM_LEVEL_DC, kind, 3600000, &latch, &error));
    return latch;
}

static void counts(struct dlm_manager *manager)
{
    struct dlm_latch *latch = latch_of(manager, "counts", DLM_LATCH_COUNT_DOWN), *other, *none;
    int64_t count;
    bool created, open;

    EXPECT(DLM_NOT_FOUND, dlm_latch_count(latch, &count, &error));
    EXPECT(DLM_NOT_FOUND, dlm_latch_count_down(latch, &error));
    EXPECT(DLM_NOT_FOUND, dlm_latch_await_open(latch, DLM_FOREVER, NULL, &open, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_create(latch, -1, &error));
    OK(dlm_latch_create(latch, 2, &error));
    EXPECT(DLM_ALREADY_EXISTS, dlm_latch_create(latch, 5, &error));
    OK(dlm_latch_get_or_create(latch, 5, &created, &error));
    CHECK(!created);
    OK(dlm_latch_count(latch, &count, &error));
    CHECK(count == 2);
    OK(dlm_latch_count_down(latch, &error));
    OK(dlm_latch_await_open(latch, 20, NULL, &open, &error));
    CHECK(!open);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_count_up(latch, &error));
    OK(dlm_latch_count_down(latch, &error));
    OK(dlm_latch_await_open(latch, 0, NULL, &open, &error));
    CHECK(open);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_await_open(latch, DLM_DEFAULT, NULL, &open, &error));
    dlm_latch_free(latch);
    EXPECT(DLM_CLOSED, dlm_latch_count(latch, &count, &error));

    other = latch_of(manager, "up-and-down", DLM_LATCH_COUNT_UP_DOWN);
    OK(dlm_latch_get_or_create(other, 0, &created, &error));
    CHECK(created);
    OK(dlm_latch_count_up(other, &error));
    OK(dlm_latch_count(other, &count, &error));
    CHECK(count == 1);
    dlm_latch_free(other);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_latch(manager, "a", DLM_LEVEL_DC, 0, 1000, &none, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_latch(manager, "a", DLM_LEVEL_DC, 1, 0, &none, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_manager_latch(manager, "", DLM_LEVEL_DC, 1, 1000, &none, &error));
}

static void names(struct dlm_manager *manager)
{
    struct dlm_latch *latch = latch_of(manager, "names", DLM_LATCH_COUNT_DOWN);
    struct dlm_texts *pending;
    const char *const workers[] = {"worker-2", "worker-1"}, *const twice[] = {"a", "a"}, *const hole[] = {"a", NULL};
    bool counted;

    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_create_for(latch, twice, 2, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_create_for(latch, hole, 2, &error));
    OK(dlm_latch_create_for(latch, workers, 2, &error));
    OK(dlm_latch_pending(latch, &pending, &error));
    CHECK(dlm_texts_count(pending) == 2);
    CHECK(strcmp(dlm_texts_at(pending, 0), "worker-1") == 0);
    CHECK(strcmp(dlm_texts_at(pending, 1), "worker-2") == 0);
    CHECK(strcmp(dlm_texts_at(pending, 2), "") == 0);
    dlm_texts_free(pending);
    OK(dlm_latch_count_down_as(latch, "worker-1", &counted, &error));
    CHECK(counted);
    OK(dlm_latch_count_down_as(latch, "worker-1", &counted, &error));
    CHECK(!counted);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_count_down_as(latch, "worker-3", &counted, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_count_down(latch, &error));
    OK(dlm_latch_pending(latch, &pending, &error));
    CHECK(dlm_texts_count(pending) == 1);
    dlm_texts_free(pending);
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_reset_for(latch, twice, 2, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_reset_for(latch, hole, 2, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_latch_reset(latch, -1, &error));
    OK(dlm_latch_reset_for(latch, workers, 2, &error));
    OK(dlm_latch_count_down_as(latch, "worker-1", &counted, &error));
    CHECK(counted);
    OK(dlm_latch_reset(latch, 1, &error));
    OK(dlm_latch_pending(latch, &pending, &error));
    CHECK(dlm_texts_count(pending) == 0);
    dlm_texts_free(pending);
    OK(dlm_latch_count_down(latch, &error));
    OK(dlm_latch_delete(latch, &error));
    EXPECT(DLM_NOT_FOUND, dlm_latch_delete(latch, &error));
    EXPECT(DLM_NOT_FOUND, dlm_latch_reset(latch, 1, &error));
    dlm_latch_free(latch);
}

struct waiter {
    struct dlm_latch *latch;
    struct dlm_cancel *cancel;
    enum dlm_status status;
    bool open;
};

static void *wait_for_it(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = dlm_latch_await_open(waiter->latch, DLM_FOREVER, waiter->cancel, &waiter->open, NULL);
    return NULL;
}

static void waits(struct dlm_manager *manager)
{
    struct dlm_latch *latch = latch_of(manager, "waits", DLM_LATCH_COUNT_DOWN);
    struct dlm_watch *watch, *missing;
    struct waiter cancelled = {0}, opened = {0};
    struct dlm_latch *never = latch_of(manager, "never", DLM_LATCH_COUNT_DOWN);
    pthread_t threads[2];
    int fd, none;
    bool open;

    OK(dlm_latch_create(latch, 1, &error));
    OK(dlm_latch_watch(latch, &watch, &error));
    OK(dlm_watch_fd(watch, &fd, &error));
    OK(dlm_watch_is_open(watch, &open, &error));
    CHECK(!open && readable(fd, 0) == 0);
    cancelled.latch = opened.latch = latch;
    cancelled.cancel = dlm_cancel_new();
    CHECK(pthread_create(&threads[0], NULL, wait_for_it, &cancelled) == 0);
    CHECK(pthread_create(&threads[1], NULL, wait_for_it, &opened) == 0);
    sleep_us(20000);
    OK(dlm_cancel_trigger(cancelled.cancel, &error));
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(cancelled.status == DLM_CANCELLED && !cancelled.open);
    OK(dlm_latch_count_down(latch, &error));
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(opened.status == DLM_OK && opened.open);
    CHECK(readable(fd, 60000) == 1);
    OK(dlm_watch_is_open(watch, &open, &error));
    CHECK(open);
    dlm_watch_free(watch);
    EXPECT(DLM_CLOSED, dlm_watch_is_open(watch, &open, &error));
    dlm_cancel_free(cancelled.cancel);

    OK(dlm_latch_watch(never, &missing, &error));
    OK(dlm_watch_fd(missing, &none, &error));
    CHECK(readable(none, 60000) == 1);
    EXPECT(DLM_NOT_FOUND, dlm_watch_is_open(missing, &open, &error));
    dlm_watch_free(missing);

    /* A watch that has already ended when its descriptor is requested. */
    OK(dlm_latch_watch(latch, &watch, &error));
    for (open = false; !open; sleep_us(1000))
        OK(dlm_watch_is_open(watch, &open, &error));
    OK(dlm_watch_fd(watch, &fd, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_watch_free(watch);
    dlm_latch_free(never);
    dlm_latch_free(latch);
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_latch *late;
    struct dlm_watch *watch;
    char uri[4096];
    bool open;
    int fd;

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=latches&farm=dc1&timeout=60s", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_initialize(manager, &error));
    OK(dlm_manager_initialize_latches(manager, &error));
    counts(manager);
    names(manager);
    waits(manager);

    late = latch_of(manager, "late", DLM_LATCH_COUNT_DOWN);
    OK(dlm_latch_create(late, 1, &error));
    OK(dlm_latch_watch(late, &watch, &error));
    OK(dlm_watch_fd(watch, &fd, &error));
    OK(dlm_manager_close(manager, &error));
    CHECK(readable(fd, 60000) == 1);
    EXPECT(DLM_CLOSED, dlm_watch_is_open(watch, &open, &error));
    dlm_watch_free(watch);
    dlm_latch_free(late);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}
