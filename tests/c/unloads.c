/* A program that loads the library with dlopen(), and closes it while threads of the library run. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

static struct dlm_error *error;

/* Defines a pointer to a function of the loaded library. C has no cast from data pointers to function pointers. */
#define LOADED(library, type, name)                                                                \
    type name##_;                                                                                  \
    do {                                                                                           \
        void *found_ = dlsym(library, #name);                                                      \
        CHECK(found_ != NULL);                                                                     \
        memcpy(&name##_, &found_, sizeof found_);                                                  \
    } while (0)

typedef enum dlm_status open_function(const char *, const struct dlm_options *, struct dlm_manager **,
                                      struct dlm_error **);
typedef enum dlm_status lock_function(struct dlm_manager *, const char *, int32_t, struct dlm_lock **,
                                      struct dlm_error **);
typedef enum dlm_status try_function(struct dlm_lock *, const struct dlm_acquire_options *, struct dlm_lease **,
                                     struct dlm_error **);
typedef enum dlm_status check_function(const struct dlm_lease *, struct dlm_error **);

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    char store[4096];
    int round;

    CHECK(argc >= 3);
    CHECK(snprintf(store, sizeof store, "%s?client=unloads", argv[1]) < (int)sizeof store);
    for (round = 0; round < 3; round++) {
        void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        {
            LOADED(library, open_function *, dlm_manager_open);
            LOADED(library, lock_function *, dlm_manager_lock);
            LOADED(library, try_function *, dlm_lock_try_acquire);
            LOADED(library, check_function *, dlm_lease_check);
            CHECK(dlm_manager_open_(store, NULL, &manager, &error) == DLM_OK);
            CHECK(dlm_manager_lock_(manager, round % 2 ? "odd" : "even", DLM_LEVEL_XDC, &lock, &error) == DLM_OK);
            /* In round three, the lease of round one still holds the lock: the library was never unloaded. */
            CHECK(dlm_lock_try_acquire_(lock, HOW(600000, 0), &lease, NULL) ==
                  (round == 2 ? DLM_LOCK_UNAVAILABLE : DLM_OK));
            CHECK(dlclose(library) == 0);
            /* Threads of the library may run, so its code stays loaded. */
            if (round < 2)
                CHECK(dlm_lease_check_(lease, NULL) == DLM_OK);
        }
    }
    return 0;
}
