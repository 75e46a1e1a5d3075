// Every class of dlm.hpp; together with more.cpp, which includes the header a second time.
#include <dlm.hpp>

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <type_traits>

using namespace std::chrono_literals;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                \
            std::abort();                                                                          \
        }                                                                                          \
    } while (0)

std::uint64_t fence_elsewhere(const dlm::Lease &lease);

template <typename T> constexpr bool is_owner() {
    return sizeof(T) == sizeof(void *) && std::is_nothrow_move_constructible_v<T> &&
           std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
}
static_assert(is_owner<dlm::Manager>() && is_owner<dlm::Lock>() && is_owner<dlm::Lease>());
static_assert(is_owner<dlm::Latch>() && is_owner<dlm::Watch>());
static_assert(is_owner<dlm::Cancel>() && is_owner<dlm::IdLock>() && is_owner<dlm::KeyLock>());
static_assert(!std::is_copy_constructible_v<dlm::IdLock::Guard> && !std::is_copy_constructible_v<dlm::KeyLock::Guard>);

template <typename Call> dlm_status status_of(Call call) {
    try {
        call();
    } catch (const dlm::Error &error) {
        CHECK(error.what()[0] != '\0');
        return error.status();
    }
    return DLM_OK;
}

static void leases(const char *uri) {
    dlm::Manager manager(uri, {{"client", "tour-cpp"}, {"farm", "dc1"}, {"retry", "20ms"}});
    manager.initialize();
    const dlm::Lock lock = manager.lock("order-42");
    std::optional<dlm::Lease> lease = lock.acquire_for(30s, 5s);
    CHECK(lease && lease->is_held() && lease->remaining() > 1s);
    const std::uint64_t fence = fence_elsewhere(*lease);
    CHECK(!lock.try_acquire() && !lock.acquire_for(dlm::use_default, 30ms));
    CHECK(manager.stats().leases_held == 1);

    lease->renew();
    lease->renew(60s);
    CHECK(lease->remaining() > 30s);
    pollfd polled{lease->lost_fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, 0) == 0);
    dlm::Lease moved = std::move(*lease);
    lease.reset();
    CHECK(moved.is_held());
    CHECK(moved.release() && !moved.release() && !moved.is_held());
    CHECK(poll(&polled, 1, 0) == 1);
    CHECK(status_of([&] { moved.check(); }) == DLM_LEASE_LOST);
    CHECK(status_of([&] { moved.renew(); }) == DLM_LEASE_LOST);

    // An exception on the way out releases.
    try {
        const auto held = lock.acquire();
        throw std::runtime_error("on the way out");
    } catch (const std::runtime_error &) {
    }
    {
        auto held = lock.try_acquire(10s);
        CHECK(held && held->fence() > fence);
        // Assigned over: the old one is released.
        const dlm::Lock other = manager.lock("order-43", dlm::Level::xdc);
        held = other.try_acquire();
        CHECK(held && lock.try_acquire());
        dlm_lease *raw = held->release_handle();
        CHECK(dlm_lease_check(raw, nullptr) == DLM_OK);
        dlm_lease_free(raw);
    }

    const auto held = lock.acquire();
    dlm::Cancel cancel;
    std::thread waiter([&] {
        CHECK(status_of([&] { (void)lock.acquire_for(dlm::use_default, dlm::forever, &cancel); }) == DLM_CANCELLED);
    });
    cancel.trigger();
    waiter.join();
    manager.close();
    CHECK(!held->is_held());
    CHECK(status_of([&] { (void)lock.try_acquire(); }) == DLM_CLOSED);
}

static void latches(const char *uri) {
    dlm::Manager manager(uri, {{"client", "tour-cpp"}, {"farm", "dc1"}});
    manager.initialize_latches();
    const dlm::Latch latch = manager.latch("loaded");
    CHECK(status_of([&] { (void)latch.count(); }) == DLM_NOT_FOUND);
    latch.create_for({"worker-1", "worker-2"});
    CHECK(status_of([&] { latch.create(2); }) == DLM_ALREADY_EXISTS && !latch.get_or_create(7));
    CHECK(latch.count() == 2 && !latch.await_open_for(10ms));
    const dlm::Watch watch = latch.watch();
    pollfd polled{watch.fd(), POLLIN, 0};
    CHECK(!watch.is_open() && poll(&polled, 1, 0) == 0);
    CHECK(latch.count_down_as("worker-1") && !latch.count_down_as("worker-1"));
    CHECK(latch.pending() == std::vector<std::string>{"worker-2"});
    std::thread waiter([&] { latch.await_open(); });
    latch.count_down();
    waiter.join();
    CHECK(poll(&polled, 1, 30000) == 1 && watch.is_open());
    CHECK(status_of([&] { latch.count_up(); }) == DLM_INVALID_ARGUMENT);
    const dlm::Latch crew = manager.latch("crew", dlm::Level::xdc, dlm::LatchKind::count_up_down, 1h);
    CHECK(crew.get_or_create(0));
    crew.count_up();
    CHECK(crew.count() == 1);
    dlm::Cancel cancel;
    cancel.trigger();
    CHECK(status_of([&] { crew.await_open(&cancel); }) == DLM_CANCELLED);
    manager.latch("nobody").create_for({});
    manager.latch("nobody").await_open();
}

static void refusals(const char *uri) {
    CHECK(status_of([&] { dlm::Manager(uri, {{"clinet", "a"}}); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { dlm::Manager("redis:"); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { dlm::Manager(std::string("memory:\0?client=a", 17)); }) == DLM_INVALID_ARGUMENT);
    dlm::Manager manager(uri, {{"client", "tour-cpp"}});
    CHECK(status_of([&] { (void)manager.lock("a"); }) == DLM_INVALID_ARGUMENT);
    const dlm::Lock lock = manager.lock("a", dlm::Level::xdc);
    CHECK(status_of([&] { (void)lock.try_acquire(0ms); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { (void)lock.acquire_for(1s, -5ms); }) == DLM_INVALID_ARGUMENT);
}

static void locks_by_id() {
    dlm::IdLock ids;
    {
        auto guard = ids.lock(1);
        CHECK(guard.id() == 1 && ids.count() == 1);
        CHECK(!ids.try_lock(1) && !ids.try_lock_for(1, 5ms));
        guard = ids.lock(2);
        CHECK(ids.count() == 1 && ids.try_lock(1));
        CHECK(ids.count() == 1);
        auto many = ids.try_lock_many_for({9, 7, 9}, 0ms);
        CHECK(many && ids.count() == 3 && !ids.try_lock_many_for({1, 7}, 0ms) && ids.count() == 3);
        CHECK(ids.try_lock_many_for({}, 0ms));
    }
    CHECK(ids.count() == 0);
    dlm::KeyLock keys;
    {
        const auto guard = keys.lock(std::string("a\0b", 3));
        CHECK(guard.key().size() == 3 && keys.count() == 1);
        CHECK(!keys.try_lock(std::string("a\0b", 3)) && keys.try_lock("a"));
    }
    CHECK(keys.count() == 0);
    CHECK(status_of([&] { (void)ids.try_lock_for(1, -7ms); }) == DLM_INVALID_ARGUMENT);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(dlm::version() == DLM_VERSION);
    leases(argv[1]);
    latches(argv[1]);
    refusals(argv[1]);
    locks_by_id();
    CHECK(dlm_handles_open() == 0);
}
