// The same as lock.c, in C++17. A lease is released when it goes out of scope.
//
//   ./lock_cpp [STORE]
#include <dlm.hpp>

#include <cstdlib>
#include <iostream>

using namespace std::chrono_literals;

int main(int argc, char **argv)
try {
    dlm::Manager manager(argc > 1 ? argv[1] : "embedded:", {{"client", "order-service"}, {"farm", "dc1"}});
    manager.initialize();
    const dlm::Lock lock = manager.lock("order-42");

    // A lease of 30 s. Waits for the lock for up to 5 s.
    if (const auto acquired = lock.acquire_for(dlm::Ttl(30s), dlm::Wait(5s))) {
        const dlm::Lease &lease = acquired.lease();
        lease.check(); // before each step that needs the lock
        std::cout << "writing with fence " << lease.fence() << '\n';
        lease.renew();
        lease.release(); // going out of scope releases it too, but ignores errors
    } else {
        std::cout << acquired.holder() << '\n'; // names the holder
    }

    dlm::IdLock accounts; // for the threads of this process
    const auto guard = accounts.lock(42);
    std::cout << "account " << guard.id() << " is locked\n";
} catch (const dlm::Error &error) {
    std::cerr << dlm_status_name(error.status()) << ": " << error.what() << '\n';
    return EXIT_FAILURE;
}
