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

    if (const auto lease = lock.acquire_for(30s, 5s)) {
        lease->check(); // before each step that needs the lock
        std::cout << "writing with fence " << lease->fence() << '\n';
        lease->renew();
        lease->release(); // or let it go out of scope; errors are then ignored
    } else {
        std::cout << "somebody else holds it\n";
    }

    dlm::IdLock accounts; // for the threads of this process
    const auto guard = accounts.lock(42);
    std::cout << "account " << guard.id() << " is ours\n";
} catch (const dlm::Error &error) {
    std::cerr << dlm_status_name(error.status()) << ": " << error.what() << '\n';
    return EXIT_FAILURE;
}
