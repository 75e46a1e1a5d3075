/* Checks for the C tests. A failed check prints its place and its condition, and aborts the program. */
#ifndef CHECK_H
#define CHECK_H

#include <dlm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #what);               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Expects a status, and the same status in the variable `error`, which the call sets. Frees the error. */
#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        enum dlm_status got_ = (call);                                                             \
        if (got_ != (wanted)) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,                      \
                    dlm_status_name((int32_t)got_), dlm_error_message(error));                     \
            abort();                                                                               \
        }                                                                                          \
        CHECK((error == NULL) == (got_ == DLM_OK));                                                \
        CHECK(got_ == DLM_OK || dlm_error_status(error) == got_);                                  \
        dlm_error_free(error);                                                                     \
        error = NULL;                                                                              \
    } while (0)

#define OK(call) EXPECT(DLM_OK, call)

/* Options of an acquisition. */
#define HOW(ttl_, wait_) HOW_WITH(ttl_, wait_, 0, NULL)
#define HOW_WITH(ttl_, wait_, max_hold_, cancel_)                                                   \
    (&(const struct dlm_acquire_options){.size = sizeof(struct dlm_acquire_options),               \
                                         .ttl_ms = (ttl_),                                         \
                                         .wait_ms = (wait_),                                       \
                                         .max_hold_ms = (max_hold_),                               \
                                         .cancel = (cancel_)})

static inline void sleep_us(long us)
{
    struct timespec time = {0, 0};
    time.tv_sec = us / 1000000;
    time.tv_nsec = us % 1000000 * 1000;
    nanosleep(&time, NULL);
}

#endif
