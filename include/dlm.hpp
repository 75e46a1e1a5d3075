// dlm.hpp: libdlm for C++17. It consists of this header, and dlm_rows.hpp for rows in HBase. dlm.h describes each function in
// full.
//
// Every class owns one handle of dlm.h. It can be moved, but not copied. Its destructor frees the handle. The rules
// of dlm.h for threads, blocking and fork() apply. get() returns the handle for calls of dlm.h, and the object still
// owns it. An object that was moved from may only be destroyed or assigned to.
//
// Failed calls throw dlm::Error, whose status() is the status of dlm.h. A timeout is not a failure: a Lock then
// returns an Acquired without a lease, which describes the holder, a Semaphore returns Permits without leases, and an
// IdLock or a KeyLock returns an empty std::optional. Destructors throw nothing and ignore errors of the release. Call release() to get them.
//
// Times have the type Ttl or Wait, which prevents swapping them: lock.acquire_for(Ttl(30s), Wait(5s)).
#ifndef DLM_HPP
#define DLM_HPP

#include <dlm.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dlm {

// As a Ttl, and as the wait of Lock::acquire_for(): the manager's setting. It is a type, not a number: no computed
// time can be equal to it.
struct use_default_t {
    explicit use_default_t() = default;
};
inline constexpr use_default_t use_default{};

// As a Wait: no limit. Also a type.
struct forever_t {
    explicit forever_t() = default;
};
inline constexpr forever_t forever{};

enum class Level : std::int32_t { dc = DLM_LEVEL_DC, xdc = DLM_LEVEL_XDC };

// How a lock is held, see DLM_MODE_EXCLUSIVE and the other numbers. Later versions may add some.
enum class Mode : std::int32_t {
    exclusive = DLM_MODE_EXCLUSIVE,
    shared = DLM_MODE_SHARED,
    update = DLM_MODE_UPDATE,
    permit = DLM_MODE_PERMIT
};

// State of a lease, see DLM_STATE_RELEASED and the other numbers. Later versions may add some.
enum class LeaseState : std::int32_t {
    released = DLM_STATE_RELEASED,
    held = DLM_STATE_HELD,
    renewing = DLM_STATE_RENEWING,
    at_risk = DLM_STATE_AT_RISK,
    lost = DLM_STATE_LOST
};

// Why a lease was lost, see DLM_LOST_EXPIRED and the other numbers. Later versions may add some.
enum class LostReason : std::int32_t {
    not_lost = DLM_LOST_NOT,
    expired = DLM_LOST_EXPIRED,
    taken_over = DLM_LOST_TAKEN_OVER,
    record_gone = DLM_LOST_RECORD_GONE,
    process_stopped = DLM_LOST_PROCESS_STOPPED,
    broken = DLM_LOST_BROKEN,
    end_unknown = DLM_LOST_END_UNKNOWN
};

// A failed call. what() says what was wrong, with which value, and what to do.
class Error : public std::runtime_error {
  public:
    Error(dlm_status status, const std::string &message, bool retryable,
          LostReason lost_reason = LostReason::not_lost)
        : std::runtime_error(message), status_(status), retryable_(retryable), lost_reason_(lost_reason) {}

    dlm_status status() const noexcept { return status_; }
    // Whether the same call may succeed later without a change by the caller.
    bool retryable() const noexcept { return retryable_; }
    // Whether the request may have taken effect although it failed.
    bool in_doubt() const noexcept { return status_ == DLM_IN_DOUBT; }
    // Why the lease was lost, for DLM_LEASE_LOST.
    LostReason lost_reason() const noexcept { return lost_reason_; }

  private:
    dlm_status status_;
    bool retryable_;
    LostReason lost_reason_;
};

// A write with a fence was refused and had no effect: the receiver has seen a higher fence of the same lock. The
// lease has ended.
class StaleFence : public Error {
  public:
    StaleFence(const std::string &message, std::uint64_t fence, std::uint64_t stored)
        : Error(DLM_STALE_FENCE, message, false), fence_(fence), stored_(stored) {}

    // The fence of the refused write.
    std::uint64_t fence() const noexcept { return fence_; }
    // The higher fence that the receiver had seen.
    std::uint64_t stored() const noexcept { return stored_; }

  private:
    std::uint64_t fence_;
    std::uint64_t stored_;
};

namespace detail {

template <auto Free> struct Deleter {
    template <typename T> void operator()(T *handle) const noexcept { Free(handle); }
};

template <typename T, auto Free> using Owner = std::unique_ptr<T, Deleter<Free>>;

// Owns the error of one call.
class ErrorOut {
  public:
    operator dlm_error **() noexcept { return &error_; }
    const dlm_error *get() const noexcept { return error_; }
    ErrorOut() = default;
    ErrorOut(const ErrorOut &) = delete;
    ErrorOut &operator=(const ErrorOut &) = delete;
    ~ErrorOut() { dlm_error_free(error_); }

    void check(dlm_status status) const {
        if (status == DLM_OK)
            return;
        std::uint64_t fence = 0, stored = 0;
        if (dlm_error_fences(error_, &fence, &stored))
            throw StaleFence(dlm_error_message(error_), fence, stored);
        throw Error(status, dlm_error_message(error_), dlm_error_is_retryable(error_),
                    static_cast<LostReason>(dlm_error_lost_reason(error_)));
    }

  private:
    dlm_error *error_ = nullptr;
};

template <typename T> T *checked(T *handle) {
    if (handle == nullptr)
        throw Error(DLM_INTERNAL_ERROR, "too many open handles of libdlm", false);
    return handle;
}

inline std::vector<std::string> texts(dlm_texts *list) {
    const Owner<dlm_texts, dlm_texts_free> owner(list);
    std::vector<std::string> texts;
    for (std::size_t at = 0; at < dlm_texts_count(list); at++)
        texts.emplace_back(dlm_texts_at(list, at));
    return texts;
}

// Text for C ends at the first NUL: a string that contains one would be cut there.
inline const char *text(const std::string &text) {
    if (text.find('\0') != std::string::npos)
        throw Error(DLM_INVALID_ARGUMENT, "a text with NUL in it is not allowed", false);
    return text.c_str();
}

// Longer times count as a hundred years. The sum with a clock's time then does not overflow.
inline constexpr std::chrono::milliseconds longest{std::int64_t{100} * 365 * 24 * 3600 * 1000};

template <typename Rep, typename Period> double about_ms(std::chrono::duration<Rep, Period> time) {
    return std::chrono::duration<double, std::milli>(time).count();
}

inline Error refused(const char *what, double ms, const char *allowed) {
    char text[160];
    std::snprintf(text, sizeof text, "%s of %.15g ms is not allowed: %s", what, ms, allowed);
    return Error(DLM_INVALID_ARGUMENT, text, false);
}

// Converts to units of `To`, rounded up: a time above zero never becomes zero. `time` must not be NaN.
template <typename To, typename Rep, typename Period> To rounded_up(std::chrono::duration<Rep, Period> time) {
    const double about = about_ms(time);
    if (about >= about_ms(longest))
        return longest;
    if (about <= -about_ms(longest))
        return -longest;
    return std::chrono::ceil<To>(time);
}

// An empty view may have a null address, which means "no value" in C.
inline const char *bytes(std::string_view view) noexcept { return view.data() == nullptr ? "" : view.data(); }

inline std::string_view view(const void *bytes, std::size_t size) {
    return {static_cast<const char *>(bytes), size};
}

// Calls without an error object first, because "it is locked" needs no message. Any other failure is repeated to get
// its message. Returns false if it is locked.
template <typename Call> bool locked(const Call &call) {
    dlm_status status = call(nullptr);
    if (status != DLM_OK && status != DLM_LOCK_UNAVAILABLE) {
        ErrorOut error;
        status = call(error);
        if (status != DLM_LOCK_UNAVAILABLE)
            error.check(status);
    }
    return status == DLM_OK;
}

} // namespace detail

// How long a lease lasts, or a latch after its last change: any std::chrono duration above zero, up to 365 days,
// rounded up to milliseconds.
class Ttl {
  public:
    // The manager's setting. In Lease::renew(): the TTL of the last grant or renewal.
    Ttl(use_default_t) noexcept : ms_(DLM_DEFAULT) {}
    // Throws with DLM_INVALID_ARGUMENT for zero and less. Calls refuse a Ttl of more than 365 days.
    template <typename Rep, typename Period> explicit Ttl(std::chrono::duration<Rep, Period> time) {
        const double about = detail::about_ms(time);
        if (!(about > 0 && about < detail::about_ms(detail::longest)))
            throw detail::refused("a TTL", about, "above zero and up to 365 days, or dlm::use_default");
        ms_ = detail::rounded_up<std::chrono::milliseconds>(time).count();
    }
    // The TTL in milliseconds, for functions of dlm.h.
    std::int64_t ms() const noexcept { return ms_; }

  private:
    std::int64_t ms_;
};

// How long a call may wait: for a std::chrono duration, rounded up to milliseconds, or until a point in time. With a
// duration of zero or less, or a point in the past, the call tries once.
class Wait {
  public:
    Wait(forever_t) noexcept : ms_(DLM_FOREVER) {}
    // Each call with this Wait waits for up to this time.
    template <typename Rep, typename Period> explicit Wait(std::chrono::duration<Rep, Period> time) {
        const double about = detail::about_ms(time);
        if (std::isnan(about))
            throw detail::refused("a wait", about, "a number, or dlm::forever");
        if (about > 0)
            ms_ = detail::rounded_up<std::chrono::milliseconds>(time).count();
    }
    // All waits of calls with this Wait end at `deadline`. The clock of `deadline` is read only here: if it is set
    // later, the wait does not change.
    template <typename Clock, typename Duration>
    static Wait until(std::chrono::time_point<Clock, Duration> deadline) {
        const auto now = Clock::now();
        // In floating point: the difference of two distant points would overflow.
        const double about =
            detail::about_ms(deadline.time_since_epoch()) - detail::about_ms(now.time_since_epoch());
        if (std::isnan(about))
            throw detail::refused("a wait", about, "a number, or dlm::forever");
        Wait wait{Steady::duration::zero()};
        if (about >= detail::about_ms(detail::longest))
            wait.deadline_ = Steady::now() + detail::longest;
        else if (about <= -1)
            return wait;
        else if constexpr (std::is_same_v<Clock, Steady>)
            wait.deadline_ = std::chrono::ceil<Steady::duration>(deadline);
        else
            wait.deadline_ = Steady::now() + detail::rounded_up<Steady::duration>(deadline - now);
        return wait;
    }
    // The remaining wait in milliseconds, for functions of dlm.h.
    std::int64_t ms() const noexcept {
        if (!deadline_)
            return ms_;
        const auto left = detail::rounded_up<std::chrono::milliseconds>(*deadline_ - Steady::now());
        return left.count() > 0 ? left.count() : 0;
    }

  private:
    using Steady = std::chrono::steady_clock;

    std::int64_t ms_ = 0;
    std::optional<Steady::time_point> deadline_;
};

// Version of the loaded library. DLM_VERSION is the version of the header.
inline std::string version() { return dlm_version(); }

// Ends waits from another thread. It stays triggered. See dlm_cancel.
class Cancel {
  public:
    Cancel() : handle_(detail::checked(dlm_cancel_new())) {}
    void trigger() const {
        detail::ErrorOut error;
        error.check(dlm_cancel_trigger(get(), error));
    }
    // A descriptor for dlm_cancel_trigger_fd(), which a signal handler may call. See dlm_cancel_signal_fd().
    int signal_fd() const {
        detail::ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_cancel_signal_fd(get(), &fd, error));
        return fd;
    }
    dlm_cancel *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_cancel, dlm_cancel_free> handle_;
};

namespace detail {

inline dlm_acquire_options options(Ttl ttl, std::int64_t wait_ms, const Cancel *cancel) {
    dlm_acquire_options how = DLM_ACQUIRE_OPTIONS;
    how.ttl_ms = ttl.ms();
    how.wait_ms = wait_ms;
    how.cancel = cancel == nullptr ? nullptr : cancel->get();
    return how;
}

} // namespace detail

// What has happened to pending acquisitions and leases: one list for many of them. See dlm_completions.
class Completions {
  public:
    Completions() : handle_(detail::checked(dlm_completions_new())) {}
    // A file descriptor that is readable while the list is not empty. The list owns it.
    int fd() const {
        detail::ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_completions_fd(get(), &fd, error));
        return fd;
    }
    // Takes what happened first. Empty if the list is empty.
    std::optional<dlm_completion> next() const noexcept {
        dlm_completion found{};
        return dlm_completions_next(get(), &found, sizeof found) ? std::optional(found) : std::nullopt;
    }
    // Waits for what happens first. Empty if the wait timed out. See dlm_completions_wait().
    std::optional<dlm_completion> wait(Wait limit = forever) const {
        detail::ErrorOut error;
        dlm_completion what{};
        bool found = false;
        error.check(dlm_completions_wait(get(), limit.ms(), &what, sizeof what, &found, error));
        return found ? std::optional(what) : std::nullopt;
    }
    dlm_completions *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_completions, dlm_completions_free> handle_;
};

class Row;
class Table;

class Call;
class Acquired;

// A held lock. The destructor releases it and ignores errors; release() reports them.
class Lease {
  public:
    explicit Lease(dlm_lease *handle) noexcept : handle_(handle) {}

    // Throws with DLM_LEASE_LOST if the lease has ended. Takes some tens of nanoseconds.
    void check() const {
        detail::ErrorOut error;
        error.check(dlm_lease_check(get(), error));
    }
    // Like check(), without an exception.
    bool is_held() const noexcept { return dlm_lease_check(get(), nullptr) == DLM_OK; }
    // The number to send with every write that the lock guards. 0 for readers, and if the store's option fence is off.
    std::uint64_t fence() const noexcept { return dlm_lease_fence(get()); }
    // check() and fence() in one call, for each step that the lock guards. Throws also for readers, and if the
    // store's option fence is off.
    [[nodiscard]] std::uint64_t guard() const {
        detail::ErrorOut error;
        std::uint64_t fence = 0;
        error.check(dlm_lease_guard(get(), &fence, error));
        return fence;
    }
    std::chrono::milliseconds remaining() const noexcept {
        return std::chrono::milliseconds(dlm_lease_remaining_ms(get()));
    }
    // A file descriptor that becomes readable when the lease has ended. The lease owns it, see dlm_lease_lost_fd().
    int lost_fd() const {
        detail::ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_lease_lost_fd(get(), &fd, error));
        return fd;
    }
    // A file descriptor that is readable while the lease is at risk, and once it has ended. See dlm_lease_at_risk_fd().
    int at_risk_fd() const {
        detail::ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_lease_at_risk_fd(get(), &fd, error));
        return fd;
    }
    // Adds `tag` to the list when the lease is at risk, and when it has ended. See dlm_lease_notify().
    void notify(const Completions &completions, std::uint64_t tag) const {
        detail::ErrorOut error;
        error.check(dlm_lease_notify(get(), completions.get(), tag, error));
    }
    LeaseState state() const noexcept { return static_cast<LeaseState>(dlm_lease_state(get())); }
    LostReason lost_reason() const noexcept { return static_cast<LostReason>(dlm_lease_lost_reason(get())); }
    // Keeps the lease alive in the background, for this time at most or dlm::forever. See dlm_lease_keep().
    void keep(Wait max_hold) const {
        detail::ErrorOut error;
        error.check(dlm_lease_keep(get(), max_hold.ms(), error));
    }
    // Ends what keep() has begun.
    void stop_keeping() const {
        detail::ErrorOut error;
        error.check(dlm_lease_stop_keeping(get(), error));
    }
    // Lets the lock stay held for this time from now, even if it is released sooner. See dlm_lease_hold_at_least().
    void hold_at_least(Wait min_hold) const {
        detail::ErrorOut error;
        error.check(dlm_lease_hold_at_least(get(), min_hold.ms(), error));
    }
    Mode mode() const noexcept { return static_cast<Mode>(dlm_lease_mode(get())); }
    // The number of the period in which the lock is held, for readers; 0 if there is none. See dlm_lease_epoch().
    std::uint64_t epoch() const noexcept { return dlm_lease_epoch(get()); }
    // The number of the permit. Empty for the lease of a lock.
    std::optional<int> permit() const noexcept {
        const int permit = dlm_lease_permit(get());
        return permit < 0 ? std::nullopt : std::optional(permit);
    }
    // Goes on with fewer rights, and lets nobody in between. This lease is over then. See dlm_lease_downgrade().
    [[nodiscard]] Lease downgrade(Mode to) const {
        detail::ErrorOut error;
        dlm_lease *lease = nullptr;
        error.check(dlm_lease_downgrade(get(), static_cast<std::int32_t>(to), &lease, error));
        return Lease(lease);
    }
    // Goes on exclusively, from Mode::update. Waits for the readers to leave. If there is a lease in the result, this one is
    // over. Throws with DLM_CANCELLED if cancelled. See dlm_lease_upgrade().
    Acquired upgrade(Wait wait, const Cancel *cancel = nullptr) const;
    // The name of the lock, as it is stored.
    std::string name() const {
        return dlm_lease_name(get());
    }
    std::chrono::milliseconds ttl() const noexcept { return std::chrono::milliseconds(dlm_lease_ttl_ms(get())); }
    // End of the lease in nanoseconds of CLOCK_BOOTTIME; zero once it was released or found lost.
    std::chrono::nanoseconds ends() const noexcept { return std::chrono::nanoseconds(dlm_lease_ends_ns(get())); }
    // Renews the lease for this time from now. Throws with DLM_LEASE_LOST if it is lost, see dlm_lease_renew().
    void renew(Ttl ttl = use_default) const {
        detail::ErrorOut error;
        error.check(dlm_lease_renew(get(), ttl.ms(), error));
    }
    // Ends the lease here without releasing the lock. Lock::adopt() takes it over from the token, in any process that
    // reaches the same store. The token proves ownership: do not log it.
    [[nodiscard]] std::string into_token() const {
        detail::ErrorOut error;
        const char *token = nullptr;
        error.check(dlm_lease_into_token(get(), &token, error));
        return token;
    }
    // Like release() and renew(), but return at once. See dlm_lease_release_start().
    Call start_release() const;
    Call start_renewal(Ttl ttl = use_default) const;
    // Returns true if the lock was this lease's and is free now, and false if the lease was released or found lost
    // before. Throws with DLM_LEASE_LOST if the lease has expired in the store or the lock has another holder.
    bool release() const {
        detail::ErrorOut error;
        bool freed = false;
        error.check(dlm_lease_release(get(), &freed, error));
        return freed;
    }
    // A row whose changes all carry the fence of this lease. It may outlive the lease. See dlm_lease_row(). In dlm_rows.hpp.
    [[nodiscard]] Row row(const Table &table, std::string_view key) const;
    dlm_lease *get() const noexcept { return handle_.get(); }
    // Transfers the handle to the caller, who frees it.
    [[nodiscard]] dlm_lease *release_handle() noexcept { return handle_.release(); }

  private:
    detail::Owner<dlm_lease, dlm_lease_free> handle_;
};

// Result of acquiring a lock: a lease, or a description of the holder if the lock was not free in time.
//
//   if (auto acquired = lock.try_acquire()) acquired->check(); else log(acquired.holder());
class [[nodiscard]] Acquired {
  public:
    // Whether there is a lease.
    explicit operator bool() const noexcept { return lease_.has_value(); }
    // The lease. If there is none, throws with DLM_LOCK_UNAVAILABLE, and holder() as what().
    const Lease &lease() const & {
        check();
        return *lease_;
    }
    Lease &lease() & {
        check();
        return *lease_;
    }
    Lease lease() && {
        check();
        return *std::move(lease_);
    }
    const Lease *operator->() const { return &lease(); }
    Lease *operator->() { return &lease(); }
    // One line for people: which lock is held, by whom and since when. Empty if there is a lease.
    const std::string &holder() const noexcept { return holder_; }
    // Remaining time of the holder's lease when the store was last read: a hint when to try again. The holder may
    // renew or release it. Empty if the store does not report it, and if there is a lease.
    std::optional<std::chrono::milliseconds> holder_left() const noexcept { return holder_left_; }

  private:
    friend class Lease;
    friend class Lock;
    friend class Pending;
    Acquired(dlm_status status, dlm_lease *lease, const detail::ErrorOut &error) {
        if (status != DLM_LOCK_UNAVAILABLE) {
            error.check(status);
            lease_.emplace(lease);
            return;
        }
        holder_ = dlm_error_message(error.get());
        const std::int64_t left = dlm_error_holder_left_ms(error.get());
        if (left >= 0)
            holder_left_.emplace(left);
    }
    void check() const {
        if (!lease_)
            throw Error(DLM_LOCK_UNAVAILABLE, holder_, true);
    }

    std::optional<Lease> lease_;
    std::string holder_;
    std::optional<std::chrono::milliseconds> holder_left_;
};

inline Acquired Lease::upgrade(Wait wait, const Cancel *cancel) const {
    detail::ErrorOut error;
    dlm_lease *lease = nullptr;
    const dlm_cancel *token = cancel == nullptr ? nullptr : cancel->get();
    const dlm_status status = dlm_lease_upgrade(get(), wait.ms(), token, &lease, error);
    return Acquired(status, lease, error);
}

// A release or a renewal that does not block, from Lease::start_release() or Lease::start_renewal(). A call that was not
// waited for goes on after the destructor.
class [[nodiscard]] Call {
  public:
    explicit Call(dlm_call *handle) noexcept : handle_(handle) {}

    // Whether the call has finished. Throws the error of the call. Only one call of this function returns the result.
    bool take(bool *freed = nullptr) const {
        detail::ErrorOut error;
        bool done = false;
        error.check(dlm_call_take(get(), &done, freed, error));
        return done;
    }
    // A file descriptor that becomes readable when the call has finished. The call owns it.
    int fd() const {
        detail::ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_call_fd(get(), &fd, error));
        return fd;
    }
    dlm_call *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_call, dlm_call_free> handle_;
};

inline Call Lease::start_release() const {
    detail::ErrorOut error;
    dlm_call *call = nullptr;
    error.check(dlm_lease_release_start(get(), &call, error));
    return Call(call);
}

inline Call Lease::start_renewal(Ttl ttl) const {
    detail::ErrorOut error;
    dlm_call *call = nullptr;
    error.check(dlm_lease_renew_start(get(), ttl.ms(), &call, error));
    return Call(call);
}

// The leases of several locks that Manager::acquire_all() has acquired together. It is valid while all of them are. The
// destructor releases all locks.
class LeaseSet {
  public:
    LeaseSet(dlm_lease_set *handle, std::size_t size) noexcept : handle_(handle), size_(size) {}

    std::size_t size() const noexcept { return size_; }
    // Throws with DLM_LEASE_LOST if a lease is not valid.
    void check() const {
        detail::ErrorOut error;
        error.check(dlm_lease_set_check(get(), error));
    }
    // check(), and the fences in the order in which the locks were passed.
    [[nodiscard]] std::vector<std::uint64_t> guard() const {
        detail::ErrorOut error;
        std::vector<std::uint64_t> fences(size_);
        error.check(dlm_lease_set_guard(get(), fences.data(), fences.size(), error));
        return fences;
    }
    std::chrono::milliseconds remaining() const noexcept {
        return std::chrono::milliseconds(dlm_lease_set_remaining_ms(get()));
    }
    // Keeps all leases alive in the background, see Lease::keep().
    void keep(Wait max_hold) const {
        detail::ErrorOut error;
        error.check(dlm_lease_set_keep(get(), max_hold.ms(), error));
    }
    void renew() const {
        detail::ErrorOut error;
        error.check(dlm_lease_set_renew(get(), error));
    }
    // Returns true if all locks were these leases' and are free now.
    bool release() const {
        detail::ErrorOut error;
        bool freed = false;
        error.check(dlm_lease_set_release(get(), &freed, error));
        return freed;
    }
    dlm_lease_set *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_lease_set, dlm_lease_set_free> handle_;
    std::size_t size_;
};

namespace detail {

// An acquisition that does not block. The destructor cancels it, and releases what was not taken.
class Started {
  public:
    explicit Started(dlm_pending *handle) noexcept : handle_(handle) {}

    // A file descriptor that becomes readable when the acquisition has finished. The pending owns it.
    int fd() const {
        ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_pending_fd(get(), &fd, error));
        return fd;
    }
    // Adds `tag` to the list when the acquisition finishes.
    void notify(const Completions &completions, std::uint64_t tag) const {
        ErrorOut error;
        error.check(dlm_pending_notify(get(), completions.get(), tag, error));
    }
    // Ends the acquisition with DLM_CANCELLED, unless it has finished.
    void cancel() const {
        ErrorOut error;
        error.check(dlm_pending_cancel(get(), error));
    }
    dlm_pending *get() const noexcept { return handle_.get(); }

  private:
    Owner<dlm_pending, dlm_pending_free> handle_;
};

} // namespace detail

// An acquisition that does not block, from Lock::start(). The destructor cancels it, and releases a lease that was not
// taken.
class [[nodiscard]] Pending : public detail::Started {
  public:
    using detail::Started::Started;

    // The result, once. Empty if the acquisition has not finished. Throws with DLM_CANCELLED if it was cancelled.
    [[nodiscard]] std::optional<Acquired> take() const {
        detail::ErrorOut error;
        dlm_lease *lease = nullptr;
        const dlm_status status = dlm_pending_take(get(), &lease, error);
        if (status == DLM_OK && lease == nullptr)
            return std::nullopt;
        return Acquired(status, lease, error);
    }
};

// Result of acquiring permits of a semaphore: their leases, or a sentence that says why there are none.
//
//   if (auto permits = licences.try_acquire(2)) use(permits.leases()); else log(permits.why());
class [[nodiscard]] Permits {
  public:
    // Whether the permits were acquired.
    explicit operator bool() const noexcept { return why_.empty(); }
    // The leases, in the order of the numbers of the permits. Throws with DLM_LOCK_UNAVAILABLE if there are none.
    const std::vector<Lease> &leases() const & {
        check();
        return leases_;
    }
    std::vector<Lease> leases() && {
        check();
        return std::move(leases_);
    }
    // One line for people: which semaphore it is, and who holds one of its permits. Empty if there are leases.
    const std::string &why() const noexcept { return why_; }

  private:
    friend class PendingPermits;
    friend class Semaphore;
    template <typename Call> Permits(std::size_t count, const Call &call) {
        // No semaphore has more permits. Both lists have room first: what cannot be kept must not be acquired.
        const std::size_t room = std::min<std::size_t>(count, 255) + 1;
        std::vector<dlm_lease *> leases(room);
        leases_.reserve(room);
        detail::ErrorOut error;
        const dlm_status status = call(leases.data(), error);
        if (status == DLM_LOCK_UNAVAILABLE) {
            why_ = dlm_error_message(error.get());
            return;
        }
        error.check(status);
        for (dlm_lease *lease : leases)
            if (lease != nullptr)
                leases_.emplace_back(lease);
    }
    void check() const {
        if (!why_.empty())
            throw Error(DLM_LOCK_UNAVAILABLE, why_, true);
    }

    std::vector<Lease> leases_;
    std::string why_;
};

// An acquisition of permits that does not block, from Semaphore::start(). The destructor cancels it, and releases permits that
// were not taken.
class [[nodiscard]] PendingPermits : public detail::Started {
  public:
    PendingPermits(dlm_pending *handle, std::size_t count) noexcept : Started(handle), count_(count) {}

    // The result, once. Empty if the acquisition has not finished. Throws with DLM_CANCELLED if it was cancelled.
    [[nodiscard]] std::optional<Permits> take() const {
        Permits permits(count_, [&](dlm_lease **leases, dlm_error **error) {
            return dlm_pending_take_permits(get(), leases, count_, error);
        });
        const bool is_finished = !permits.leases_.empty() || !permits.why_.empty();
        return is_finished ? std::optional(std::move(permits)) : std::nullopt;
    }

  private:
    std::size_t count_;
};

// A break of a lock. The fence is above the old holder's; 0 if there is none. See dlm_seen_break().
struct Broken {
    std::uint64_t fence;
    bool is_recorded;
};

// The holder of a lock at the moment of Lock::see().
class Seen {
  public:
    explicit Seen(dlm_seen *handle) noexcept : handle_(handle) {}

    [[nodiscard]] dlm_inspection inspection() const {
        detail::ErrorOut error;
        dlm_inspection inspection{};
        error.check(dlm_seen_inspection(get(), &inspection, sizeof inspection, error));
        return inspection;
    }
    // Takes the lock from the holder that was seen, and from no other: see dlm_seen_break(). Empty if that grant is over.
    [[nodiscard]] std::optional<Broken> break_holder(const std::string &reason) const {
        detail::ErrorOut error;
        bool broken = false;
        Broken result{};
        error.check(
            dlm_seen_break(get(), detail::text(reason), &broken, &result.fence, &result.is_recorded, error));
        return broken ? std::optional(result) : std::nullopt;
    }
    dlm_seen *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_seen, dlm_seen_free> handle_;
};

// Something that happened to a lock. See dlm_lock_history().
struct HistoryEntry {
    std::string kind, by, victim, text;
    std::int64_t at_ms, took_ms;
    std::uint64_t fence;
    // 0 exclusive, 1 shared, 2 update, 3 a permit of a semaphore. `mode_before` is for "mode changed".
    std::int32_t mode, mode_before;
};

// Those that wait for a lock, as far as its holder knows them. See dlm_lock_waiting().
struct Waiters {
    std::uint64_t threads, processes;
    std::int64_t longest_ms;
};

// A lock in a list. `inspection` says who holds it.
struct ListedLock {
    std::string key;
    bool is_named;
    dlm_inspection inspection;
};

// A part of a list of locks. `next` says where the next page begins; it is "" after the last one.
struct LockList {
    std::vector<ListedLock> locks;
    std::string next;
};

namespace detail {

inline std::vector<dlm_inspection> inspections(dlm_lock_list *list) {
    const Owner<dlm_lock_list, dlm_lock_list_free> owner(list);
    std::vector<dlm_inspection> found(dlm_lock_list_count(list));
    for (std::size_t at = 0; at < found.size(); at++) {
        ErrorOut error;
        error.check(dlm_lock_list_inspection(list, at, &found[at], sizeof found[at], error));
    }
    return found;
}

} // namespace detail

// A named lock.
class Lock {
  public:
    explicit Lock(dlm_lock *handle) noexcept : handle_(handle) {}

    // A handle of the same lock that acquires it as one of any number of readers, such as lock.shared().acquire(). See
    // dlm_lock_in_mode().
    [[nodiscard]] Lock shared() const { return in_mode(Mode::shared); }
    // A handle of the same lock that acquires it beside readers, as the only one that may then write: see Lease::upgrade().
    [[nodiscard]] Lock update() const { return in_mode(Mode::update); }
    [[nodiscard]] Lock in_mode(Mode mode) const {
        detail::ErrorOut error;
        dlm_lock *lock = nullptr;
        error.check(dlm_lock_in_mode(get(), static_cast<std::int32_t>(mode), &lock, error));
        return Lock(lock);
    }
    // Tries once to acquire the lock.
    Acquired try_acquire(Ttl ttl = use_default) const {
        return try_acquire_with(detail::options(ttl, DLM_DEFAULT, nullptr));
    }
    // Like try_acquire(), acquire() and start(), with any options. Begin with DLM_ACQUIRE_OPTIONS.
    Acquired try_acquire_with(const dlm_acquire_options &how) const {
        detail::ErrorOut error;
        dlm_lease *lease = nullptr;
        const dlm_status status = dlm_lock_try_acquire(get(), &how, &lease, error);
        return Acquired(status, lease, error);
    }
    Acquired acquire_with(const dlm_acquire_options &how) const {
        detail::ErrorOut error;
        dlm_lease *lease = nullptr;
        const dlm_status status = dlm_lock_acquire(get(), &how, &lease, error);
        return Acquired(status, lease, error);
    }
    Pending start_with(const dlm_acquire_options &how) const {
        detail::ErrorOut error;
        dlm_pending *pending = nullptr;
        error.check(dlm_lock_acquire_start(get(), &how, &pending, error));
        return Pending(pending);
    }
    // Waits for the lock with the manager's TTL and wait.
    Acquired acquire() const { return acquire_for(use_default, use_default); }
    // Waits for the lock for up to this time; `forever` has no limit. Throws with DLM_CANCELLED if cancelled.
    Acquired acquire_for(Ttl ttl, Wait wait, const Cancel *cancel = nullptr) const {
        return acquire_with(detail::options(ttl, wait.ms(), cancel));
    }
    Acquired acquire_for(Ttl ttl, use_default_t, const Cancel *cancel = nullptr) const {
        return acquire_with(detail::options(ttl, DLM_DEFAULT, cancel));
    }
    // Starts to acquire the lock with the manager's TTL and wait, and returns at once.
    Pending start() const { return start_for(use_default, use_default); }
    // Starts to acquire the lock as acquire_for() does. The lease is kept alive for `max_hold` from the grant on, unless
    // that is zero: see Lease::keep().
    Pending start_for(Ttl ttl, Wait wait, const Cancel *cancel = nullptr, Wait max_hold = no_hold()) const {
        return started(ttl, wait.ms(), cancel, max_hold);
    }
    Pending start_for(Ttl ttl, use_default_t, const Cancel *cancel = nullptr, Wait max_hold = no_hold()) const {
        return started(ttl, DLM_DEFAULT, cancel, max_hold);
    }
    // Takes over the lease of this lock from its token, see Lease::into_token(). No I/O.
    [[nodiscard]] Lease adopt(const std::string &token) const {
        detail::ErrorOut error;
        dlm_lease *lease = nullptr;
        error.check(dlm_lock_adopt(get(), detail::text(token), &lease, error));
        return Lease(lease);
    }
    // Who holds the lock, and the last fence. See dlm_lock_inspect().
    [[nodiscard]] dlm_inspection inspect() const {
        detail::ErrorOut error;
        dlm_inspection inspection{};
        error.check(dlm_lock_inspect(get(), &inspection, sizeof inspection, error));
        return inspection;
    }
    // All that hold the lock. See dlm_lock_holders().
    [[nodiscard]] std::vector<dlm_inspection> holders() const {
        detail::ErrorOut error;
        dlm_lock_list *list = nullptr;
        error.check(dlm_lock_holders(get(), &list, error));
        return detail::inspections(list);
    }
    // Reads who holds the lock, for Seen::break_holder().
    [[nodiscard]] Seen see() const {
        detail::ErrorOut error;
        dlm_seen *seen = nullptr;
        error.check(dlm_lock_see(get(), &seen, error));
        return Seen(seen);
    }
    // Asks the holder who waits. Empty if the lock is free or the holder does not answer: see dlm_lock_waiting().
    [[nodiscard]] std::optional<Waiters> waiting() const {
        detail::ErrorOut error;
        bool known = false;
        Waiters waiters{};
        error.check(
            dlm_lock_waiting(get(), &known, &waiters.threads, &waiters.processes, &waiters.longest_ms, error));
        return known ? std::optional(waiters) : std::nullopt;
    }
    // The newest entries of the lock's history, the newest first: see dlm_lock_history().
    [[nodiscard]] std::vector<HistoryEntry> history(std::uint64_t since_ms = 0, std::size_t most = 256) const {
        detail::ErrorOut error;
        dlm_history *history = nullptr;
        error.check(dlm_lock_history(get(), since_ms, most, &history, error));
        const detail::Owner<dlm_history, dlm_history_free> owner(history);
        std::vector<HistoryEntry> entries;
        entries.reserve(dlm_history_count(history));
        dlm_history_entry entry{};
        for (std::size_t at = 0; dlm_history_at(history, at, &entry, sizeof entry); at++)
            entries.push_back({entry.kind, entry.by, entry.victim, entry.text, entry.at_ms, entry.took_ms, entry.fence,
                               entry.mode, entry.mode_before});
        return entries;
    }
    // The name of the lock, as it is stored.
    std::string name() const {
        return dlm_lock_name(get());
    }
    // Waits until this process leads, without limit, and keeps the lease alive: see dlm_lock_campaign(). Throws with
    // DLM_CANCELLED if cancelled. Lease::release() resigns.
    [[nodiscard]] Lease campaign(Ttl ttl = use_default, const Cancel *cancel = nullptr) const {
        return campaign_for(ttl, forever, cancel).lease();
    }
    // Like campaign(), for up to this time. After it, the Acquired has no lease and describes the leader. If the last
    // attempt failed otherwise, such as with DLM_CONNECTION_ERROR, the call throws that.
    Acquired campaign_for(Ttl ttl, Wait wait, const Cancel *cancel = nullptr) const {
        detail::ErrorOut error;
        dlm_lease *lease = nullptr;
        const dlm_acquire_options how = detail::options(ttl, wait.ms(), cancel);
        const dlm_status status = dlm_lock_campaign(get(), &how, &lease, error);
        return Acquired(status, lease, error);
    }
    // Waits until the holder is not the one in `seen`, and writes the new one there. Returns false if the wait timed out.
    bool observe(dlm_inspection &seen, Wait wait, const Cancel *cancel = nullptr) const {
        detail::ErrorOut error;
        bool changed = false;
        const dlm_cancel *token = cancel == nullptr ? nullptr : cancel->get();
        error.check(dlm_lock_observe(get(), wait.ms(), token, &seen, sizeof seen, &changed, error));
        return changed;
    }
    dlm_lock *get() const noexcept { return handle_.get(); }

  private:
    static Wait no_hold() { return Wait(std::chrono::milliseconds::zero()); }
    Pending started(Ttl ttl, std::int64_t wait_ms, const Cancel *cancel, const Wait &max_hold) const {
        dlm_acquire_options how = detail::options(ttl, wait_ms, cancel);
        how.max_hold_ms = max_hold.ms();
        return start_with(how);
    }

    detail::Owner<dlm_lock, dlm_lock_free> handle_;
};

// A named semaphore: so many permits, of which each has one holder at a time. See dlm_manager_semaphore().
class Semaphore {
  public:
    explicit Semaphore(dlm_semaphore *handle) noexcept : handle_(handle) {}

    // Tries once to acquire so many permits, all or none.
    Permits try_acquire(std::size_t count, Ttl ttl = use_default) const {
        return try_acquire_with(count, detail::options(ttl, DLM_DEFAULT, nullptr));
    }
    // Like try_acquire(), acquire() and start(), with any options. Begin with DLM_ACQUIRE_OPTIONS.
    Permits try_acquire_with(std::size_t count, const dlm_acquire_options &how) const {
        return Permits(count, [&](dlm_lease **leases, dlm_error **error) {
            return dlm_semaphore_try_acquire(get(), count, &how, leases, error);
        });
    }
    Permits acquire_with(std::size_t count, const dlm_acquire_options &how) const {
        return Permits(count, [&](dlm_lease **leases, dlm_error **error) {
            return dlm_semaphore_acquire(get(), count, &how, leases, error);
        });
    }
    PendingPermits start_with(std::size_t count, const dlm_acquire_options &how) const {
        detail::ErrorOut error;
        dlm_pending *pending = nullptr;
        error.check(dlm_semaphore_acquire_start(get(), count, &how, &pending, error));
        return PendingPermits(pending, count);
    }
    // Waits for so many permits with the manager's TTL and wait.
    Permits acquire(std::size_t count) const {
        return acquire_with(count, detail::options(use_default, DLM_DEFAULT, nullptr));
    }
    // Waits for so many permits for up to this time. Throws with DLM_CANCELLED if cancelled.
    Permits acquire_for(std::size_t count, Ttl ttl, Wait wait, const Cancel *cancel = nullptr) const {
        return acquire_with(count, detail::options(ttl, wait.ms(), cancel));
    }
    // Starts to acquire so many permits with the manager's TTL and wait, and returns at once.
    PendingPermits start(std::size_t count) const {
        return start_with(count, detail::options(use_default, DLM_DEFAULT, nullptr));
    }
    // How many permits are free: a hint.
    int available() const {
        detail::ErrorOut error;
        std::int32_t available = -1;
        error.check(dlm_semaphore_available(get(), &available, error));
        return available;
    }
    // The holders of permits, ordered by the numbers of these.
    [[nodiscard]] std::vector<dlm_inspection> holders() const {
        detail::ErrorOut error;
        dlm_lock_list *list = nullptr;
        error.check(dlm_semaphore_holders(get(), &list, error));
        return detail::inspections(list);
    }
    // Changes the number of permits in the store, and returns a handle with this number. See dlm_semaphore_resize().
    [[nodiscard]] Semaphore resize(int permits) const {
        detail::ErrorOut error;
        dlm_semaphore *resized = nullptr;
        error.check(dlm_semaphore_resize(get(), permits, &resized, error));
        return Semaphore(resized);
    }
    // The number of permits of this handle.
    int permits() const noexcept { return dlm_semaphore_permits(get()); }
    // The name of the semaphore, as it is stored.
    std::string name() const {
        return dlm_semaphore_name(get());
    }
    dlm_semaphore *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_semaphore, dlm_semaphore_free> handle_;
};

enum class LatchKind : std::int32_t { count_down = DLM_LATCH_COUNT_DOWN, count_up_down = DLM_LATCH_COUNT_UP_DOWN };

// A watch on a latch, for event loops. The destructor ends the watch.
class Watch {
  public:
    explicit Watch(dlm_watch *handle) noexcept : handle_(handle) {}

    // A file descriptor that becomes readable when is_open() returns true or throws. The watch owns it.
    int fd() const {
        detail::ErrorOut error;
        std::int32_t fd = -1;
        error.check(dlm_watch_fd(get(), &fd, error));
        return fd;
    }
    // Whether the latch was seen open. Throws the error that ended the watch, such as DLM_NOT_FOUND.
    bool is_open() const {
        detail::ErrorOut error;
        bool open = false;
        error.check(dlm_watch_is_open(get(), &open, error));
        return open;
    }
    dlm_watch *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_watch, dlm_watch_free> handle_;
};

// A count in the store that all processes share. They can wait until it reaches zero. The destructor leaves it in the
// store.
class Latch {
  public:
    explicit Latch(dlm_latch *handle) noexcept : handle_(handle) {}

    // Creates the latch. Throws with DLM_ALREADY_EXISTS if it exists. Its count is then unchanged.
    void create(std::int64_t count) const {
        detail::ErrorOut error;
        error.check(dlm_latch_create(get(), count, error));
    }
    // Creates the latch for these participants. While one is missing, nobody else counts.
    void create_for(const std::vector<std::string> &participants) const {
        detail::ErrorOut error;
        const std::vector<const char *> names = texts(participants);
        error.check(dlm_latch_create_for(get(), names.data(), participants.size(), error));
    }
    // Begins the latch anew, whatever its count is. What was counted before has no effect any more: see dlm_latch_reset().
    // Throws with DLM_NOT_FOUND if the latch does not exist.
    void reset(std::int64_t count) const {
        detail::ErrorOut error;
        error.check(dlm_latch_reset(get(), count, error));
    }
    // Begins the latch anew for these participants.
    void reset_for(const std::vector<std::string> &participants) const {
        detail::ErrorOut error;
        const std::vector<const char *> names = texts(participants);
        error.check(dlm_latch_reset_for(get(), names.data(), participants.size(), error));
    }
    // Deletes the count of the manager's farm: see dlm_latch_delete(). Throws with DLM_NOT_FOUND if there is none.
    void remove() const {
        detail::ErrorOut error;
        error.check(dlm_latch_delete(get(), error));
    }
    // Creates the latch unless it exists. Returns true if this call created it.
    bool get_or_create(std::int64_t count) const {
        detail::ErrorOut error;
        bool created = false;
        error.check(dlm_latch_get_or_create(get(), count, &created, error));
        return created;
    }
    // Number of missing count-downs. Throws with DLM_NOT_FOUND if the latch was never created or has expired.
    std::int64_t count() const {
        detail::ErrorOut error;
        std::int64_t count = 0;
        error.check(dlm_latch_count(get(), &count, error));
        return count;
    }
    void count_down() const {
        detail::ErrorOut error;
        error.check(dlm_latch_count_down(get(), error));
    }
    void count_up() const {
        detail::ErrorOut error;
        error.check(dlm_latch_count_up(get(), error));
    }
    // Counts down at most once per name. Returns false if that name had counted before. Throws with
    // DLM_INVALID_ARGUMENT for a name that a latch of create_for() does not wait for.
    bool count_down_as(const std::string &participant) const {
        detail::ErrorOut error;
        bool counted = false;
        error.check(dlm_latch_count_down_as(get(), detail::text(participant), &counted, error));
        return counted;
    }
    // The names that are expected and have not counted down.
    std::vector<std::string> pending() const {
        detail::ErrorOut error;
        dlm_texts *list = nullptr;
        error.check(dlm_latch_pending(get(), &list, error));
        return detail::texts(list);
    }
    // The names that have counted down, expected or not.
    std::vector<std::string> arrived() const {
        detail::ErrorOut error;
        dlm_texts *list = nullptr;
        error.check(dlm_latch_arrived(get(), &list, error));
        return detail::texts(list);
    }
    std::string name() const {
        return dlm_latch_name(get());
    }
    // Waits until the latch is open. Returns false if the wait timed out. Throws with DLM_CANCELLED if cancelled.
    bool await_open_for(Wait wait, const Cancel *cancel = nullptr) const {
        detail::ErrorOut error;
        bool open = false;
        const dlm_cancel *token = cancel == nullptr ? nullptr : cancel->get();
        error.check(dlm_latch_await_open(get(), wait.ms(), token, &open, error));
        return open;
    }
    void await_open(const Cancel *cancel = nullptr) const { (void)await_open_for(forever, cancel); }
    [[nodiscard]] Watch watch() const {
        detail::ErrorOut error;
        dlm_watch *watch = nullptr;
        error.check(dlm_latch_watch(get(), &watch, error));
        return Watch(watch);
    }
    dlm_latch *get() const noexcept { return handle_.get(); }

  private:
    // The names as C takes them, and one NULL: an empty vector may have no array.
    static std::vector<const char *> texts(const std::vector<std::string> &names) {
        std::vector<const char *> all;
        for (const std::string &name : names)
            all.push_back(detail::text(name));
        all.push_back(nullptr);
        return all;
    }

    detail::Owner<dlm_latch, dlm_latch_free> handle_;
};

// One store, with the locks and latches of one client id in it. The destructor does not close the manager: locks,
// leases and latches outlive it.
class Manager {
  public:
    using Options = std::vector<std::pair<std::string, std::string>>;

    // `options` has keys of dlm_options_set(). If both set a key, `options` wins over the URI.
    explicit Manager(const std::string &uri, const Options &options = {}) : handle_(opened(uri, options)) {}

    // Throws if the store does not answer within `limit` and the store time-out. See dlm_manager_reach().
    void reach(Wait limit = forever) const {
        detail::ErrorOut error;
        error.check(dlm_manager_reach(get(), limit.ms(), error));
    }
    // Creates what locks need in the store if it is missing.
    void initialize() const {
        detail::ErrorOut error;
        error.check(dlm_manager_initialize(get(), error));
    }
    [[nodiscard]] Lock lock(const std::string &id, Level level = Level::dc) const {
        detail::ErrorOut error;
        dlm_lock *lock = nullptr;
        error.check(dlm_manager_lock(get(), detail::text(id), static_cast<std::int32_t>(level), &lock, error));
        return Lock(lock);
    }
    // The semaphore with so many permits, 1 to 256. See dlm_manager_semaphore().
    [[nodiscard]] Semaphore semaphore(const std::string &id, Level level, int permits) const {
        detail::ErrorOut error;
        dlm_semaphore *semaphore = nullptr;
        error.check(dlm_manager_semaphore(get(), detail::text(id), static_cast<std::int32_t>(level), permits, &semaphore,
                                          error));
        return Semaphore(semaphore);
    }
    // The lock with this full name, which may be one of another client: see dlm_manager_lock_named().
    [[nodiscard]] Lock lock_named(const std::string &full_name) const {
        detail::ErrorOut error;
        dlm_lock *lock = nullptr;
        error.check(dlm_manager_lock_named(get(), detail::text(full_name), &lock, error));
        return Lock(lock);
    }
    // A page of the locks of all clients: see dlm_manager_list(). `after` is `next` of the page before.
    [[nodiscard]] LockList list(const std::string &prefix, bool held_only, const std::string &after = {}) const {
        detail::ErrorOut error;
        dlm_lock_list *list = nullptr;
        error.check(
            dlm_manager_list(get(), detail::text(prefix), held_only, detail::text(after), &list, error));
        const detail::Owner<dlm_lock_list, dlm_lock_list_free> owner(list);
        LockList page{{}, dlm_lock_list_next(list)};
        for (std::size_t at = 0; at < dlm_lock_list_count(list); at++) {
            ListedLock lock{dlm_lock_list_key(list, at), dlm_lock_list_is_named(list, at), {}};
            error.check(dlm_lock_list_inspection(list, at, &lock.inspection, sizeof lock.inspection, error));
            page.locks.push_back(std::move(lock));
        }
        return page;
    }
    // Creates what latches need in the store if it is missing. Without this call, the first latch creates it.
    void initialize_latches() const {
        detail::ErrorOut error;
        error.check(dlm_manager_initialize_latches(get(), error));
    }
    [[nodiscard]] Latch latch(const std::string &id, Level level = Level::dc, LatchKind kind = LatchKind::count_down,
                              Ttl ttl = use_default) const {
        detail::ErrorOut error;
        dlm_latch *latch = nullptr;
        error.check(dlm_manager_latch(get(), detail::text(id), static_cast<std::int32_t>(level),
                                      static_cast<std::int32_t>(kind), ttl.ms(), &latch, error));
        return Latch(latch);
    }
    dlm_stats stats() const {
        detail::ErrorOut error;
        dlm_stats stats{};
        error.check(dlm_manager_stats(get(), &stats, sizeof stats, error));
        return stats;
    }
    // A page of metrics in Prometheus' text format. See dlm_manager_metrics_text().
    std::string metrics_text() const {
        detail::ErrorOut error;
        dlm_texts *text = nullptr;
        error.check(dlm_manager_metrics_text(get(), &text, error));
        return detail::texts(text).at(0);
    }
    // Acquires several locks together: all of them or none. See dlm_manager_acquire_all(). Empty if a lock was not free in
    // time.
    [[nodiscard]] std::optional<LeaseSet> acquire_all(const std::vector<const Lock *> &locks, Ttl ttl, Wait wait,
                                                      const Cancel *cancel = nullptr) const {
        detail::ErrorOut error;
        std::vector<dlm_lock *> handles;
        for (const Lock *lock : locks)
            handles.push_back(lock == nullptr ? nullptr : lock->get());
        // An empty vector may have no array.
        handles.push_back(nullptr);
        dlm_lease_set *set = nullptr;
        const dlm_acquire_options how = detail::options(ttl, wait.ms(), cancel);
        const dlm_status status =
            dlm_manager_acquire_all(get(), handles.data(), locks.size(), &how, &set, error);
        if (status == DLM_LOCK_UNAVAILABLE)
            return std::nullopt;
        error.check(status);
        return std::make_optional<LeaseSet>(set, locks.size());
    }
    // Whether the store is safe for locks, and a line for each finding. See dlm_manager_diagnose().
    std::pair<bool, std::vector<std::string>> diagnose() const {
        detail::ErrorOut error;
        dlm_texts *findings = nullptr;
        bool is_safe = false;
        error.check(dlm_manager_diagnose(get(), &findings, &is_safe, error));
        return {is_safe, detail::texts(findings)};
    }
    // The URI of the store, without credentials.
    std::string store() const {
        return dlm_manager_store(get());
    }
    // A time of the manager's settings in milliseconds, see dlm_manager_setting_ms().
    std::int64_t setting_ms(const std::string &key) const {
        detail::ErrorOut error;
        std::int64_t ms = 0;
        error.check(dlm_manager_setting_ms(get(), detail::text(key), &ms, error));
        return ms;
    }
    // Ends all waits and releases all leases.
    void close() const {
        detail::ErrorOut error;
        error.check(dlm_manager_close(get(), error));
    }
    dlm_manager *get() const noexcept { return handle_.get(); }

  private:
    static dlm_manager *opened(const std::string &uri, const Options &options) {
        detail::ErrorOut error;
        // The loaded library may be newer or older than the header.
        error.check(dlm_abi_check(DLM_ABI, error));
        detail::Owner<dlm_options, dlm_options_free> given(detail::checked(dlm_options_new()));
        for (const auto &[key, value] : options) {
            detail::ErrorOut refused;
            refused.check(dlm_options_set(given.get(), detail::text(key), detail::text(value), refused));
        }
        detail::ErrorOut failed;
        dlm_manager *manager = nullptr;
        failed.check(dlm_manager_open(detail::text(uri), given.get(), &manager, failed));
        return manager;
    }

    detail::Owner<dlm_manager, dlm_manager_free> handle_;
};

// Locks for the threads of this process, one for each 64-bit id. The destructor releases all ids. Waiting calls then
// throw with DLM_CLOSED, and guards release nothing.
class IdLock {
  public:
    // A locked id. The destructor releases it. A guard must not outlive its IdLock, which must not be moved while it
    // has guards.
    class Guard {
      public:
        Guard(Guard &&other) noexcept : owner_(std::exchange(other.owner_, nullptr)), id_(other.id_) {}
        Guard &operator=(Guard &&other) noexcept {
            if (this != &other) {
                unlock();
                owner_ = std::exchange(other.owner_, nullptr);
                id_ = other.id_;
            }
            return *this;
        }
        ~Guard() { unlock(); }
        std::uint64_t id() const noexcept { return id_; }

      private:
        friend class IdLock;
        Guard(dlm_id_lock *owner, std::uint64_t id) noexcept : owner_(owner), id_(id) {}
        void unlock() noexcept {
            if (owner_ != nullptr)
                (void)dlm_id_lock_release(owner_, id_, nullptr);
        }
        dlm_id_lock *owner_;
        std::uint64_t id_;
    };

    // Several locked ids, released together.
    class Guards {
      public:
        Guards(Guards &&other) noexcept
            : owner_(std::exchange(other.owner_, nullptr)), ids_(std::move(other.ids_)) {}
        Guards &operator=(Guards &&other) noexcept {
            if (this != &other) {
                unlock();
                owner_ = std::exchange(other.owner_, nullptr);
                ids_ = std::move(other.ids_);
            }
            return *this;
        }
        ~Guards() { unlock(); }

      private:
        friend class IdLock;
        Guards(dlm_id_lock *owner, std::vector<std::uint64_t> ids) noexcept
            : owner_(owner), ids_(std::move(ids)) {}
        void unlock() noexcept {
            if (owner_ != nullptr)
                (void)dlm_id_lock_release_many(owner_, ids_.data(), ids_.size(), nullptr);
        }
        dlm_id_lock *owner_;
        std::vector<std::uint64_t> ids_;
    };

    IdLock() : handle_(detail::checked(dlm_id_lock_new())) {}

    // Waits for the id without limit.
    [[nodiscard]] Guard lock(std::uint64_t id) const {
        detail::ErrorOut error;
        error.check(dlm_id_lock_acquire(get(), id, DLM_FOREVER, error));
        return Guard(get(), id);
    }
    [[nodiscard]] std::optional<Guard> try_lock(std::uint64_t id) const {
        return try_lock_for(id, Wait(std::chrono::milliseconds::zero()));
    }
    [[nodiscard]] std::optional<Guard> try_lock_for(std::uint64_t id, Wait wait) const {
        const auto call = [&](dlm_error **error) { return dlm_id_lock_acquire(get(), id, wait.ms(), error); };
        if (!detail::locked(call))
            return std::nullopt;
        return Guard(get(), id);
    }
    // Locks all ids or none, in ascending order: callers that lock overlapping sets cannot deadlock.
    [[nodiscard]] std::optional<Guards> try_lock_many_for(std::vector<std::uint64_t> ids, Wait wait) const {
        if (ids.empty())
            return Guards(nullptr, {});
        const auto call = [&](dlm_error **error) {
            return dlm_id_lock_acquire_many(get(), ids.data(), ids.size(), wait.ms(), error);
        };
        if (!detail::locked(call))
            return std::nullopt;
        return Guards(get(), std::move(ids));
    }
    // Number of ids that are locked or waited for right now.
    std::uint64_t count() const noexcept { return dlm_id_lock_count(get()); }
    dlm_id_lock *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_id_lock, dlm_id_lock_free> handle_;
};

// Like IdLock, for keys of bytes.
class KeyLock {
  public:
    // A locked key. The destructor releases it.
    class Guard {
      public:
        Guard(Guard &&other) noexcept : owner_(std::exchange(other.owner_, nullptr)), key_(std::move(other.key_)) {}
        Guard &operator=(Guard &&other) noexcept {
            if (this != &other) {
                unlock();
                owner_ = std::exchange(other.owner_, nullptr);
                key_ = std::move(other.key_);
            }
            return *this;
        }
        ~Guard() { unlock(); }
        const std::string &key() const noexcept { return key_; }

      private:
        friend class KeyLock;
        Guard(dlm_key_lock *owner, std::string key) noexcept : owner_(owner), key_(std::move(key)) {}
        void unlock() noexcept {
            if (owner_ != nullptr)
                (void)dlm_key_lock_release(owner_, key_.data(), key_.size(), nullptr);
        }
        dlm_key_lock *owner_;
        std::string key_;
    };

    KeyLock() : handle_(detail::checked(dlm_key_lock_new())) {}

    [[nodiscard]] Guard lock(std::string key) const {
        detail::ErrorOut error;
        error.check(dlm_key_lock_acquire(get(), key.data(), key.size(), DLM_FOREVER, error));
        return Guard(get(), std::move(key));
    }
    [[nodiscard]] std::optional<Guard> try_lock(std::string key) const {
        return try_lock_for(std::move(key), Wait(std::chrono::milliseconds::zero()));
    }
    [[nodiscard]] std::optional<Guard> try_lock_for(std::string key, Wait wait) const {
        const auto call = [&](dlm_error **error) {
            return dlm_key_lock_acquire(get(), key.data(), key.size(), wait.ms(), error);
        };
        if (!detail::locked(call))
            return std::nullopt;
        return Guard(get(), std::move(key));
    }
    std::uint64_t count() const noexcept { return dlm_key_lock_count(get()); }
    dlm_key_lock *get() const noexcept { return handle_.get(); }

  private:
    detail::Owner<dlm_key_lock, dlm_key_lock_free> handle_;
};

} // namespace dlm

#endif
