// Which devices a host lists. ibv_get_device_list() takes nothing that could say whose it is, so there is one
// such function per host: a few slots, handed out to the hosts that live.
#pragma once

#include <cstddef>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {

/// A free slot for the host; no slot free is the test's bug and ends the process.
void take_slot(Host& host);
void give_back_slot(Host& host);
/// The get_device_list() of that slot.
ibv_device** (*lister(std::size_t slot))(int* count);

/// Everything that the host's processes call.
transport::rdma::VerbsLibrary table(const Host& host);

}  // namespace mkernel::test::nic
