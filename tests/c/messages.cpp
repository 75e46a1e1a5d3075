// Reads lines of a verb, the id of a lock or latch if it needs one, and the URI of a store, with tabs between. Prints what
// the call says: the name of its status, and the message.
#include <dlm.hpp>

#include <iostream>
#include <string>

std::uint64_t fence_elsewhere(const dlm::Lease &lease);

int main() {
    std::string verb, id, uri;
    while (std::getline(std::cin, verb, '\t') && std::getline(std::cin, id, '\t') && std::getline(std::cin, uri)) {
        try {
            const dlm::Manager manager(uri);
            if (verb == "reach") {
                manager.reach();
            } else if (verb == "acquire") {
                static_cast<void>(manager.lock(id, dlm::Level::xdc).acquire());
            } else {
                manager.latch(id, dlm::Level::xdc).count_down();
            }
            std::cout << dlm_status_name(DLM_OK) << ": \n";
        } catch (const dlm::Error &error) {
            std::cout << dlm_status_name(error.status()) << ": " << error.what() << "\n";
        }
    }
}
