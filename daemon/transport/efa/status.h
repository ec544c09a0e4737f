// What a failed completion of an EFA means.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace mkernel::transport::efa {

/// Of the device's own status, which the completion carries as its vendor error: it tells apart what the
/// status of verbs does not.
enum class Failure {
  kFlushed,    ///< the queue pair is going: says nothing about the put
  kSource,     ///< our memory is not registered (any more)
  kTarget,     ///< the peer's memory is not registered (any more), or not for this range
  kUnable,     ///< the peer's device cannot do it: no attempt will go better
  kConnection  ///< anything else: the other end cannot be reached as it was
};

Failure meaning(const ibv_wc& completion);
/// "the peer stopped answering (EFA status 13)".
std::string text_of(const ibv_wc& completion);

}  // namespace mkernel::transport::efa
