/* What the parts of the package that call C share. */
#ifndef DLM_GO_NAMED_H
#define DLM_GO_NAMED_H

#include "dlm.h"

/* The level of a full name. No level of the library has this number. */
enum { DLM_GO_FULL_NAME = -1 };

/* Creates a handle of a lock by its id, or by its full name. */
static inline enum dlm_status dlm_go_lock(const struct dlm_manager *manager, const char *id, int32_t level,
                                          struct dlm_lock **lock, struct dlm_error **error) {
	if (level == DLM_GO_FULL_NAME)
		return dlm_manager_lock_named(manager, id, lock, error);
	return dlm_manager_lock(manager, id, level, lock, error);
}

#endif
