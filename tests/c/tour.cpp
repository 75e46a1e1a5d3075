// Every class of dlm.hpp. It is linked with more.cpp, which includes the header a second time.
#include <dlm.hpp>

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <thread>
#include <type_traits>

using namespace std::chrono_literals;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #what);          \
            std::abort();                                                                          \
        }                                                                                          \
    } while (0)

std::uint64_t fence_elsewhere(const dlm::Lease &lease);

template <typename T> constexpr bool is_owner() {
    return sizeof(T) == sizeof(void *) && std::is_nothrow_move_constructible_v<T> &&
           std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
}
static_assert(is_owner<dlm::Manager>() && is_owner<dlm::Lock>() && is_owner<dlm::Lease>());
static_assert(is_owner<dlm::Semaphore>() && is_owner<dlm::Pending>());
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

// Returns whether the call is refused with a message that contains all of these texts.
template <typename Call> bool refuses(Call call, std::initializer_list<const char *> says) {
    try {
        call();
    } catch (const dlm::Error &error) {
        const std::string message = error.what();
        for (const char *text : says) {
            if (message.find(text) == std::string::npos) {
                std::fprintf(stderr, "\"%s\" is not in: %s\n", text, error.what());
                return false;
            }
        }
        return error.status() == DLM_INVALID_ARGUMENT;
    }
    return false;
}

template <typename Duration> bool is_refused_as_ttl(Duration time, const char *value) {
    return refuses([&] { dlm::Ttl ttl(time); }, {"TTL", value, "not allowed", "365 days"});
}

static void times() {
    using std::chrono::duration;
    using std::chrono::hours;
    using std::chrono::steady_clock;
    using std::chrono::system_clock;
    const double infinity = std::numeric_limits<double>::infinity();
    const double no_number = std::numeric_limits<double>::quiet_NaN();

    // Some of these numbers have a special meaning in dlm.h.
    CHECK(is_refused_as_ttl(-1ms, "-1 ms") && is_refused_as_ttl(-2ms, "-2 ms") && is_refused_as_ttl(-90s, "-90000 ms"));
    CHECK(is_refused_as_ttl(0s, "0 ms") && is_refused_as_ttl(-1ns, "-1e-06 ms"));
    CHECK(is_refused_as_ttl(hours::max(), "ms") && is_refused_as_ttl(hours::min(), "ms"));
    CHECK(is_refused_as_ttl(duration<double>(infinity), "inf") && is_refused_as_ttl(duration<double>(no_number), "nan"));
    CHECK(dlm::Ttl(1ns).ms() == 1 && dlm::Ttl(1us).ms() == 1 && dlm::Ttl(1ms).ms() == 1);
    CHECK(dlm::Ttl(1001us).ms() == 2 && dlm::Ttl(2s).ms() == 2000 && dlm::Ttl(duration<double>(0.0015)).ms() == 2);
    CHECK(dlm::Ttl(dlm::use_default).ms() == DLM_DEFAULT);

    CHECK(dlm::Wait(-1ms).ms() == 0 && dlm::Wait(-2ms).ms() == 0 && dlm::Wait(-3s).ms() == 0 && dlm::Wait(0s).ms() == 0);
    CHECK(dlm::Wait(hours::min()).ms() == 0 && dlm::Wait(duration<double>(-infinity)).ms() == 0);
    CHECK(dlm::Wait(1ns).ms() == 1 && dlm::Wait(1001us).ms() == 2 && dlm::Wait(5s).ms() == 5000);
    CHECK(dlm::Wait(dlm::forever).ms() == DLM_FOREVER);
    // A long time, and never one of the special numbers of dlm.h.
    const std::int64_t century = dlm::Wait(hours::max()).ms();
    CHECK(century > 0 && dlm::Wait(duration<double>(infinity)).ms() == century);
    CHECK(dlm::Wait(std::chrono::nanoseconds::max()).ms() == century);
    CHECK(refuses([&] { dlm::Wait wait{duration<double>(no_number)}; }, {"wait", "nan", "not allowed"}));

    CHECK(dlm::Wait::until(steady_clock::now() - 1ns).ms() == 0 && dlm::Wait::until(steady_clock::now() - 1h).ms() == 0);
    CHECK(dlm::Wait::until(system_clock::now() - 1s).ms() == 0 && dlm::Wait::until(system_clock::time_point()).ms() == 0);
    CHECK(dlm::Wait::until(steady_clock::time_point::min()).ms() == 0);
    CHECK(dlm::Wait::until(system_clock::time_point::min()).ms() == 0);
    const std::int64_t hour = dlm::Wait::until(system_clock::now() + 1h).ms();
    CHECK(hour > 0 && hour <= 3600000);
    for (const std::int64_t far : {dlm::Wait::until(steady_clock::time_point::max()).ms(),
                                   dlm::Wait::until(system_clock::time_point::max()).ms(),
                                   dlm::Wait::until(std::chrono::time_point<system_clock, hours>::max()).ms()})
        CHECK(far > century / 2 && far <= century);
    // The deadline does not move when the object is used later.
    const auto soon = steady_clock::now() + 20ms;
    const dlm::Wait until = dlm::Wait::until(soon);
    std::this_thread::sleep_until(soon + 1ms);
    CHECK(until.ms() == 0);
}

static dlm::Lease finished(const dlm::Pending &pending) {
    pollfd polled{pending.fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, 60000) == 1);
    return pending.take().value().lease();
}

// Waits until the holder of the lock says that one thread of its process waits.
static void one_waits(const dlm::Lock &lock) {
    for (int tries = 0; tries < 3000; tries++) {
        const std::optional<dlm::Waiters> waiters = lock.waiting();
        if (waiters && waiters->threads == 1 && waiters->processes == 0 && waiters->longest_ms > 0)
            return;
        std::this_thread::sleep_for(20ms);
    }
    CHECK(!"the holder did not say who waits");
}

static void pendings(const char *uri) {
    dlm::Manager manager(uri, {{"client", "tour-cpp"}, {"retry", "1h"}, {"ttl", "10m"}, {"timeout", "60s"}});
    const dlm::Lock lock = manager.lock("pending", dlm::Level::xdc);
    dlm::Lease lease = finished(lock.start());
    const dlm::Completions completions;
    const dlm::Cancel cancel;
    const dlm::Pending first = lock.start_for(dlm::use_default, dlm::forever, nullptr, dlm::Wait(1h));
    const dlm::Pending second = lock.start_for(dlm::Ttl(600s), dlm::use_default, &cancel);
    first.notify(completions, 1);
    second.notify(completions, 2);
    CHECK(!first.take() && !second.take() && !completions.next());
    CHECK(cancel.signal_fd() >= 0);
    cancel.trigger();
    CHECK(completions.next()->tag == 2 && status_of([&] { (void)second.take(); }) == DLM_CANCELLED);
    // The holder of a lock in memory hears no notices.
    if (std::string(uri).rfind("embedded:", 0) == 0)
        one_waits(lock);
    { const dlm::Pending dropped = lock.start(); }
    const dlm::Pending brief = lock.start_for(dlm::use_default, dlm::Wait(1ms));
    pollfd polled{brief.fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, 60000) == 1 && !*brief.take());
    CHECK(lease.release());
    polled = {completions.fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, 60000) == 1 && completions.next()->tag == 1);
    CHECK(finished(first).state() == dlm::LeaseState::renewing);
    first.cancel();
}

static void leases(const char *uri) {
    dlm::Manager manager(uri, {{"client", "tour-cpp"}, {"farm", "dc1"}, {"retry", "20ms"}, {"timeout", "60s"}});
    manager.initialize();
    const dlm::Lock lock = manager.lock("order-42");
    dlm::Acquired acquired = lock.acquire_for(dlm::Ttl(600s), dlm::Wait(60s));
    CHECK(acquired && acquired->is_held() && acquired->remaining() > 1s);
    CHECK(acquired.holder().empty() && !acquired.holder_left());
    const std::uint64_t fence = fence_elsewhere(acquired.lease());
    CHECK(!lock.try_acquire() && !lock.acquire_for(dlm::use_default, dlm::Wait(30ms)));
    CHECK(manager.stats().leases_held == 1);
    const dlm::LockList listed = manager.list("DC#dc1#tour-cpp#", true);
    CHECK(listed.next.empty() && listed.locks.size() == 1 && listed.locks[0].is_named);
    CHECK(listed.locks[0].inspection.pid == getpid() && listed.locks[0].key == lock.name());
    const dlm::Lock named = manager.lock_named(listed.locks[0].key);
    {
        const dlm::Lock hung = manager.lock("hung");
        dlm::Acquired held = hung.try_acquire();
        const dlm::Seen seen = hung.see();
        CHECK(seen.inspection().is_held == 1);
        const std::optional<dlm::Broken> broken = seen.break_holder("it hangs");
        CHECK(broken && broken->fence > held->fence() && broken->is_recorded && !seen.break_holder("it hangs"));
        CHECK(status_of([&] { held->renew(); }) == DLM_LEASE_LOST);
        CHECK(!hung.waiting());
        const std::vector<dlm::HistoryEntry> history = hung.history();
        CHECK(history.size() == 3 && history[0].text == "it hangs" && !history[0].by.empty());
        CHECK(history[0].mode == 0 && history[0].mode_before == 0);
        CHECK(named.history().empty());
    }
    CHECK(manager.metrics_text().find("# TYPE dlm_leases_held gauge") != std::string::npos);

    // The holder, and how long the holder may keep the lock.
    const dlm::Acquired refused = lock.try_acquire();
    CHECK(!refused && refused.holder().find("order-42") != std::string::npos);
    CHECK(refused.holder().find("pid " + std::to_string(getpid())) != std::string::npos);
    CHECK(refused.holder_left() && *refused.holder_left() > 0ms && *refused.holder_left() <= 600s);
    try {
        (void)refused.lease();
        CHECK(false);
    } catch (const dlm::Error &error) {
        CHECK(error.status() == DLM_LOCK_UNAVAILABLE && error.retryable() && error.what() == refused.holder());
    }
    CHECK(status_of([&] { (void)lock.try_acquire()->fence(); }) == DLM_LOCK_UNAVAILABLE);

    // A time in the past tries once. A computed time never means "for ever".
    for (const auto late : {0ms, -1ms, -2ms, -3ms})
        CHECK(!lock.acquire_for(dlm::use_default, dlm::Wait(late)));
    CHECK(!lock.acquire_for(dlm::use_default, dlm::Wait::until(std::chrono::system_clock::now() - 1s)));
    CHECK(status_of([&] { (void)lock.try_acquire(dlm::Ttl(std::chrono::hours(24 * 366))); }) == DLM_INVALID_ARGUMENT);
    const auto deadline = std::chrono::steady_clock::now() + 50ms;
    CHECK(!lock.acquire_for(dlm::use_default, dlm::Wait::until(deadline)));
    CHECK(std::chrono::steady_clock::now() >= deadline);

    acquired->renew();
    acquired->renew(dlm::Ttl(1200s));
    CHECK(acquired->remaining() > 600s);
    pollfd polled{acquired->lost_fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, 0) == 0);
    CHECK(acquired->state() == dlm::LeaseState::held);
    acquired->keep(dlm::forever);
    acquired->keep(dlm::Wait(1h));
    CHECK(acquired->state() == dlm::LeaseState::renewing && acquired->lost_reason() == dlm::LostReason::not_lost);
    CHECK(status_of([&] { acquired->keep(dlm::Wait(0ms)); }) == DLM_INVALID_ARGUMENT);
    pollfd risk{acquired->at_risk_fd(), POLLIN, 0};
    CHECK(poll(&risk, 1, 0) == 0);
    dlm::Lease moved = std::move(acquired).lease();
    CHECK(moved.is_held());
    CHECK(moved.release() && !moved.release() && !moved.is_held());
    CHECK(poll(&polled, 1, 0) == 1);
    CHECK(status_of([&] { moved.check(); }) == DLM_LEASE_LOST);
    CHECK(status_of([&] { moved.renew(); }) == DLM_LEASE_LOST);

    // An exception that leaves the block releases the lock.
    try {
        const auto held = lock.acquire();
        throw std::runtime_error("on the way out");
    } catch (const std::runtime_error &) {
    }
    {
        auto held = lock.acquire_for(dlm::Ttl(60s), dlm::Wait::until(std::chrono::steady_clock::time_point::min()));
        CHECK(held && held->fence() > fence);
        // An assignment releases the old lease.
        const dlm::Lock other = manager.lock("order-43", dlm::Level::xdc);
        held = other.try_acquire();
        CHECK(held && lock.try_acquire());
        CHECK(held->guard() == held->fence());
        const auto given = lock.try_acquire();
        const dlm::Lease adopted = lock.adopt(given->into_token());
        CHECK(!given->is_held() && adopted.guard() == given->fence() && lock.inspect().is_held == 1);
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
    dlm::Manager manager(uri, {{"client", "tour-cpp"}, {"farm", "dc1"}, {"timeout", "60s"}});
    manager.initialize_latches();
    const dlm::Latch latch = manager.latch("loaded");
    CHECK(status_of([&] { (void)latch.count(); }) == DLM_NOT_FOUND);
    latch.create_for({"worker-1", "worker-2"});
    CHECK(status_of([&] { latch.create(2); }) == DLM_ALREADY_EXISTS && !latch.get_or_create(7));
    CHECK(latch.count() == 2 && !latch.await_open_for(dlm::Wait(10ms)));
    CHECK(!latch.await_open_for(dlm::Wait(-1ms)) && !latch.await_open_for(dlm::Wait(0ms)));
    const dlm::Watch watch = latch.watch();
    pollfd polled{watch.fd(), POLLIN, 0};
    CHECK(!watch.is_open() && poll(&polled, 1, 0) == 0);
    CHECK(latch.count_down_as("worker-1") && !latch.count_down_as("worker-1"));
    CHECK(latch.pending() == std::vector<std::string>{"worker-2"});
    std::thread waiter([&] { latch.await_open(); });
    CHECK(status_of([&] { (void)latch.count_down_as("worker-3"); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { latch.count_down(); }) == DLM_INVALID_ARGUMENT);
    CHECK(latch.count_down_as("worker-2"));
    waiter.join();
    CHECK(poll(&polled, 1, 60000) == 1 && watch.is_open());
    CHECK(status_of([&] { latch.count_up(); }) == DLM_INVALID_ARGUMENT);
    const dlm::Latch crew = manager.latch("crew", dlm::Level::xdc, dlm::LatchKind::count_up_down, dlm::Ttl(1h));
    CHECK(crew.get_or_create(0));
    crew.count_up();
    CHECK(crew.count() == 1);
    dlm::Cancel cancel;
    cancel.trigger();
    CHECK(status_of([&] { crew.await_open(&cancel); }) == DLM_CANCELLED);
    latch.reset_for({"worker-2"});
    CHECK(latch.pending() == std::vector<std::string>{"worker-2"} && latch.count_down_as("worker-2"));
    latch.reset(3);
    CHECK(latch.count() == 3 && !latch.await_open_for(dlm::Wait(0ms)));
    latch.remove();
    CHECK(status_of([&] { latch.remove(); }) == DLM_NOT_FOUND);
    CHECK(status_of([&] { latch.reset(1); }) == DLM_NOT_FOUND);
    manager.latch("nobody").create_for({});
    manager.latch("nobody").await_open();
}

static void terms(const char *uri) {
    dlm::Manager manager(uri, {{"client", "tour-terms"}, {"farm", "f"}, {"retry", "5ms"}, {"timeout", "60s"}});
    const dlm::Lock a = manager.lock("a", dlm::Level::xdc), b = manager.lock("b", dlm::Level::xdc);
    CHECK(a.name() == "XDC#tour-terms#a" && manager.store().rfind("embedded:", 0) == 0);
    {
        const auto both = manager.acquire_all({&b, &a}, dlm::Ttl(1min), dlm::Wait(0s));
        CHECK(both && both->size() == 2 && both->guard().size() == 2 && both->remaining() > 1s);
        CHECK(!manager.acquire_all({&a}, dlm::use_default, dlm::Wait(0s)));
        both->keep(dlm::forever);
        both->renew();
        both->check();
        CHECK(both->release() && !both->release());
    }
    CHECK(status_of([&] { (void)manager.acquire_all({}, dlm::use_default, dlm::Wait(0s)); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { (void)manager.acquire_all({nullptr}, dlm::use_default, dlm::Wait(0s)); }) ==
          DLM_INVALID_ARGUMENT);

    dlm_inspection seen{};
    CHECK(!a.observe(seen, dlm::Wait(0s)));
    const dlm::Lease term = a.campaign(dlm::Ttl(1min));
    CHECK(term.state() == dlm::LeaseState::renewing && term.guard() > 0 && term.name() == a.name());
    CHECK(a.observe(seen, dlm::forever) && seen.fence == term.fence());
    const dlm::Acquired late = a.campaign_for(dlm::use_default, dlm::Wait(1ms));
    CHECK(!late && !late.holder().empty() && late.holder_left());
    CHECK(b.campaign_for(dlm::Ttl(1min), dlm::Wait(0s))->state() == dlm::LeaseState::renewing);
    term.stop_keeping();
    CHECK(term.state() == dlm::LeaseState::held && term.ttl() == 1min && term.ends() > 0ns);
    const dlm::Call renewal = term.start_renewal(dlm::Ttl(2min));
    while (!renewal.take())
        CHECK(renewal.fd() >= 0);
    CHECK(term.ttl() == 2min);
    term.hold_at_least(dlm::Wait(1ms));
    const dlm::Call release = term.start_release();
    bool freed = false;
    while (!release.take(&freed))
        CHECK(release.fd() >= 0);
    CHECK(freed && !term.release());
    try {
        term.check();
        CHECK(false);
    } catch (const dlm::Error &error) {
        CHECK(error.status() == DLM_LEASE_LOST && error.lost_reason() == dlm::LostReason::not_lost);
    }
    const auto [is_safe, findings] = manager.diagnose();
    CHECK(is_safe && !findings.empty());
    CHECK(manager.setting_ms("retry") == 5);
    const dlm::Latch latch = manager.latch("l");
    CHECK(latch.name().find("l") != std::string::npos);
    latch.create_for({"x", "y"});
    latch.count_down_as("x");
    CHECK(latch.arrived() == std::vector<std::string>{"x"} && latch.pending() == std::vector<std::string>{"y"});
    CHECK(dlm_version_number() == DLM_VERSION_NUMBER);
}

static void refusals(const char *uri) {
    CHECK(status_of([&] { dlm::Manager(uri, {{"clinet", "a"}}); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { dlm::Manager("redis:"); }) == DLM_INVALID_ARGUMENT);
    CHECK(status_of([&] { dlm::Manager(std::string("memory:\0?client=a", 17)); }) == DLM_INVALID_ARGUMENT);
    dlm::Manager manager(uri, {{"client", "tour-cpp"}});
    CHECK(status_of([&] { (void)manager.lock("a"); }) == DLM_INVALID_ARGUMENT);
    const dlm::Lock lock = manager.lock("a", dlm::Level::xdc);
    CHECK(status_of([&] { (void)lock.try_acquire(dlm::Ttl(0ms)); }) == DLM_INVALID_ARGUMENT);
    CHECK(lock.acquire_for(dlm::Ttl(60s), dlm::Wait(-5ms)));
}

static void locks_by_id() {
    dlm::IdLock ids;
    {
        auto guard = ids.lock(1);
        CHECK(guard.id() == 1 && ids.count() == 1);
        CHECK(!ids.try_lock(1) && !ids.try_lock_for(1, dlm::Wait(5ms)) && !ids.try_lock_for(1, dlm::Wait(-1ms)));
        guard = ids.lock(2);
        CHECK(ids.count() == 1 && ids.try_lock(1));
        CHECK(ids.count() == 1);
        auto many = ids.try_lock_many_for({9, 7, 9}, dlm::Wait(0ms));
        CHECK(many && ids.count() == 3 && !ids.try_lock_many_for({1, 7}, dlm::Wait(0ms)) && ids.count() == 3);
        CHECK(ids.try_lock_many_for({}, dlm::Wait(0ms)) && !ids.try_lock_many_for({7, 1}, dlm::Wait(-1ms)));
    }
    CHECK(ids.count() == 0);
    dlm::KeyLock keys;
    {
        const auto guard = keys.lock(std::string("a\0b", 3));
        CHECK(guard.key().size() == 3 && keys.count() == 1);
        CHECK(!keys.try_lock(std::string("a\0b", 3)) && keys.try_lock("a"));
    }
    CHECK(keys.count() == 0);
    // The message names the argument and its value.
    const std::string long_key(70000, 'k');
    CHECK(refuses([&] { (void)keys.lock(long_key); }, {"key", "70000", "65536"}));
    CHECK(refuses([&] { (void)keys.try_lock(long_key); }, {"key", "70000", "65536"}));
    CHECK(refuses([&] { (void)keys.try_lock_for(long_key, dlm::Wait(1ms)); }, {"key", "70000", "65536"}));
    const dlm::IdLock elsewhere = std::move(ids);
    CHECK(refuses([&] { (void)ids.try_lock(1); }, {"dlm_id_lock", "NULL"}));
    CHECK(refuses([&] { (void)ids.try_lock_many_for({1, 2}, dlm::Wait(1ms)); }, {"dlm_id_lock", "NULL"}));
    const dlm::KeyLock keys_elsewhere = std::move(keys);
    CHECK(refuses([&] { (void)keys.try_lock("a"); }, {"dlm_key_lock", "NULL"}));
}

static void modes(const std::string &uri) {
    const dlm::Manager manager(uri, {{"client", "cpp-modes"}, {"retry", "20ms"}, {"ttl", "10m"}, {"timeout", "60s"}});
    const dlm::Lock lock = manager.lock("prices", dlm::Level::xdc);
    const dlm::Lock reading = lock.shared();
    dlm::Lease one = reading.acquire().lease();
    const dlm::Lease updating = lock.update().try_acquire().lease();
    CHECK(one.mode() == dlm::Mode::shared && updating.mode() == dlm::Mode::update && !one.permit());
    CHECK(one.epoch() == updating.epoch() && one.epoch() != 0);
    CHECK(!lock.try_acquire() && lock.holders().size() == 2);
    CHECK(!updating.upgrade(dlm::Wait(1ms)) && updating.is_held());
    CHECK(status_of([&] { (void)one.upgrade(dlm::forever); }) == DLM_UNSUPPORTED_CONVERSION);
    one.release();
    const dlm::Lease writing = updating.upgrade(dlm::forever).lease();
    CHECK(writing.guard() > one.epoch() && !updating.is_held());
    CHECK(reading.acquire_for(dlm::use_default, dlm::Wait(1ms)).holder().find("is held") != std::string::npos);
    const dlm::Lease after = writing.downgrade(dlm::Mode::shared);
    CHECK(reading.acquire()->epoch() == after.epoch());
    dlm_acquire_options nested = DLM_ACQUIRE_OPTIONS;
    nested.mode = DLM_MODE_SHARED;
    nested.nested_in = after.get();
    CHECK(lock.acquire_with(nested)->mode() == dlm::Mode::shared);

    const dlm::Semaphore licences = manager.semaphore("licences", dlm::Level::xdc, 3);
    CHECK(licences.permits() == 3 && licences.name() == "XDC#cpp-modes#licences" && licences.available() == 3);
    std::vector<dlm::Lease> two = licences.try_acquire(2).leases();
    CHECK(two.size() == 2 && two[1].permit() == 1 && two[0].guard() > 0);
    const dlm::Permits none = licences.acquire_for(2, dlm::use_default, dlm::Wait(1ms));
    CHECK(!none && !none.why().empty() && status_of([&] { none.leases(); }) == DLM_LOCK_UNAVAILABLE);
    for (std::size_t count : {std::size_t{0}, std::size_t{4}, std::size_t{1} << 40})
        CHECK(status_of([&] { (void)licences.acquire(count); }) == DLM_INVALID_ARGUMENT);
    const dlm::PendingPermits pending = licences.start(2);
    CHECK(!pending.take());
    two.pop_back();
    {
        pollfd polled{pending.fd(), POLLIN, 0};
        CHECK(poll(&polled, 1, 60000) == 1);
    }
    const std::optional<dlm::Permits> taken = pending.take();
    CHECK(taken && taken->leases().size() == 2 && taken->leases()[1].permit() == 2);
    CHECK(licences.holders().size() == 3 && licences.holders()[2].permit == 2);
    const dlm::Semaphore larger = licences.resize(4);
    CHECK(larger.try_acquire(1) && status_of([&] { (void)licences.try_acquire(1); }) == DLM_INVALID_ARGUMENT);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(dlm::version() == DLM_VERSION);
    times();
    leases(argv[1]);
    pendings(argv[1]);
    latches(argv[1]);
    terms(argv[1]);
    modes(argv[1]);
    refusals(argv[1]);
    locks_by_id();
    CHECK(dlm_handles_open() == 0);
}
