// The header a second time: what is not `inline` there would be defined twice.
#include <dlm.hpp>
#include <dlm.hpp>

std::uint64_t fence_elsewhere(const dlm::Lease &lease);

std::uint64_t fence_elsewhere(const dlm::Lease &lease) {
    lease.check();
    return lease.fence();
}
