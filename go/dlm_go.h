/* dlm_go.h: functions of libdlm for the Go package, and for no other program: they change only with DLM_ABI.
 * Generated from src/capi by build.rs; do not edit. */
#ifndef DLM_GO_H
#define DLM_GO_H

#include "dlm.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Like dlm_lock_acquire_start(), for callers that can send the first request themselves. This saves a change of threads. If
/// `*turn_out` is true, it is this acquisition's turn: call dlm_pending_ask() soon. Until then nobody asks the store for the
/// lock, and the wait does not end by itself. If it is false, the library does the rest. Never blocks, except that it may
/// start a thread.
DLM_NODISCARD
enum dlm_status dlm_lock_acquire_start_here(struct dlm_lock *lock,
                                            const struct dlm_acquire_options *options,
                                            struct dlm_pending **pending_out,
                                            bool *turn_out,
                                            struct dlm_error **error_out);

/// Like dlm_semaphore_acquire_start(), for callers that can send the first request themselves: see dlm_lock_acquire_start_here().
DLM_NODISCARD
enum dlm_status dlm_semaphore_acquire_start_here(struct dlm_semaphore *semaphore,
                                                 size_t count,
                                                 const struct dlm_acquire_options *options,
                                                 struct dlm_pending **pending_out,
                                                 bool *turn_out,
                                                 struct dlm_error **error_out);

/// Sends the first request of an acquisition from this thread, see dlm_lock_acquire_start_here(). Blocks for one
/// call to the store. Afterwards dlm_pending_take() has the result, or the library goes on. Does nothing if the
/// acquisition has finished.
DLM_NODISCARD
enum dlm_status dlm_pending_ask(struct dlm_pending *pending,
                                struct dlm_error **error_out);

#ifdef __cplusplus
}
#endif

#endif
