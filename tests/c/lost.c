/* The descriptor of a lease becomes readable when the lease ends: by time, by release or by close. A renewal moves
 * that moment. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <poll.h>
#include <unistd.h>

static struct dlm_error *error;

static int readable(int fd, int wait_ms)
{
    struct pollfd polled = {0, POLLIN, 0};
    polled.fd = fd;
    return poll(&polled, 1, wait_ms);
}

int main(int argc, char **argv)
{
    struct dlm_manager *manager;
    struct dlm_lock *lock;
    struct dlm_lease *lease;
    int fd, again;
    char uri[4096];

    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "%s?client=lost&farm=dc1", argv[1]);
    OK(dlm_manager_open(uri, NULL, &manager, &error));
    OK(dlm_manager_lock(manager, "a", DLM_LEVEL_DC, &lock, &error));

    OK(dlm_lock_acquire_within(lock, 3000, DLM_DEFAULT, NULL, &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    OK(dlm_lease_lost_fd(lease, &again, &error));
    CHECK(fd == again && fd >= 0);
    CHECK(readable(fd, 30000) == 1);
    EXPECT(DLM_LEASE_LOST, dlm_lease_check(lease, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_lease_free(lease);
    CHECK(readable(fd, 0) == 1); /* closed: POLLNVAL */

    OK(dlm_lock_acquire_within(lock, 60000, DLM_DEFAULT, NULL, &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    CHECK(readable(fd, 0) == 0);
    OK(dlm_lease_renew(lease, 3600000, &error));
    CHECK(readable(fd, 0) == 0);
    OK(dlm_lease_renew(lease, 1, &error));
    CHECK(readable(fd, 30000) == 1);
    dlm_lease_free(lease);

    OK(dlm_lock_acquire_within(lock, 60000, DLM_DEFAULT, NULL, &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    OK(dlm_lease_release(lease, NULL, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_lease_free(lease);

    OK(dlm_lock_acquire_within(lock, 60000, DLM_DEFAULT, NULL, &lease, &error));
    OK(dlm_lease_lost_fd(lease, &fd, &error));
    OK(dlm_manager_close(manager, &error));
    CHECK(readable(fd, 0) == 1);
    dlm_lease_free(lease);

    dlm_lock_free(lock);
    dlm_manager_free(manager);
    CHECK(dlm_handles_open() == 0);
    return 0;
}
