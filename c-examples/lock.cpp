// The same as lock.c, in C++17: what is held is released when it goes out of scope.
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

    // Held for 30 s unless renewed; waits for it for 5 s.
    if (const auto acquired = lock.acquire_for(dlm::Ttl(30s), dlm::Wait(5s))) {
        const dlm::Lease &lease = acquired.lease();
        lease.check(); // before each step that needs the lock
        std::cout << "writing with fence " << lease.fence() << '\n';
        lease.renew();
        lease.release(); // or let it go out of scope; errors are then ignored
    } else {
        std::cout << acquired.holder() << '\n'; // says who holds it
    }

    dlm::IdLock accounts; // for the threads of this process
    const auto guard = accounts.lock(42);
    std::cout << "account " << guard.id() << " is ours\n";
} catch (const dlm::Error &error) {
    std::cerr << dlm_status_name(error.status()) << ": " << error.what() << '\n';
    return EXIT_FAILURE;
}
