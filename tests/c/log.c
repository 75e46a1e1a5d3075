/* The log callback: which messages it receives, when its calls stop, and what it must not do. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>

static struct dlm_error *error;
static int warnings, from_within;
static volatile int running = 1;

static void heard(void *user, int32_t level, const char *message)
{
    int *count = user;
    CHECK(level == DLM_LOG_WARN && strstr(message, "was freed"));
    (*count)++;
    if (from_within == 0) {
        from_within = 1;
        CHECK(dlm_log_to(DLM_LOG_WARN, NULL, NULL, NULL) == DLM_INVALID_ARGUMENT);
        /* This logs a message, which must not call this callback again. */
        dlm_cancel_free((struct dlm_cancel *)1);
    }
}

/* Frees a handle twice, which logs a warning. */
static void complain(void)
{
    struct dlm_cancel *cancel = dlm_cancel_new();
    dlm_cancel_free(cancel);
    dlm_cancel_free(cancel);
}

static void touch(void *user, int32_t level, const char *message)
{
    CHECK(level == DLM_LOG_WARN && message != NULL);
    *(volatile char *)user = 1;
}

static void *keep_complaining(void *unused)
{
    (void)unused;
    while (running)
        complain();
    return NULL;
}

/* When dlm_log_to returns, the previous callback no longer runs, and its data may be freed. */
static void stops_before_it_returns(void)
{
    pthread_t thread;
    int i;
    CHECK(pthread_create(&thread, NULL, keep_complaining, NULL) == 0);
    for (i = 0; i < 500; i++) {
        char *user = malloc(1);
        OK(dlm_log_to(DLM_LOG_DEBUG, touch, user, &error));
        sleep_us(20);
        OK(dlm_log_to(DLM_LOG_DEBUG, NULL, NULL, &error));
        free(user);
    }
    running = 0;
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
    complain();
    EXPECT(DLM_INVALID_ARGUMENT, dlm_log_to(0, heard, &warnings, &error));
    EXPECT(DLM_INVALID_ARGUMENT, dlm_log_to(5, heard, &warnings, &error));
    OK(dlm_log_to(DLM_LOG_ERROR, heard, &warnings, &error));
    complain();
    CHECK(warnings == 0);
    OK(dlm_log_to(DLM_LOG_INFO, heard, &warnings, &error));
    complain();
    CHECK(warnings == 1 && from_within == 1);
    OK(dlm_log_to(DLM_LOG_INFO, NULL, NULL, &error));
    complain();
    CHECK(warnings == 1);
    stops_before_it_returns();
    return 0;
}
