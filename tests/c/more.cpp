// Includes the header in a second source file. A function in it that is not `inline` would be defined twice.
#include <dlm.hpp>
#include <dlm.hpp>

std::uint64_t fence_elsewhere(const dlm::Lease &lease);

std::uint64_t fence_elsewhere(const dlm::Lease &lease) {
    lease.check();
    return lease.fence();
}
