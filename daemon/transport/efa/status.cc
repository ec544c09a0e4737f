#include "daemon/transport/efa/status.h"

namespace mkernel::transport::efa {
namespace {

/// Numbers of the EFA device interface.
enum Number : std::uint32_t {
  kFlushed = 1,
  kInvalidKey = 5,
  kBadLength = 6,
  kBadAddress = 7,
  kAborted = 8,
  kBadQueuePair = 9,
  kNotReady = 10,
  kUnresponsive = 13,
  kUnknownPeer = 14,
  kUnreachable = 15,
  kFeatureMismatch = 18,
};

const char* name_of(std::uint32_t number) {
  switch (number) {
    case kFlushed: return "flushed";
    case kInvalidKey: return "the source is not registered";
    case kBadLength: return "more bytes than one request may have";
    case kBadAddress: return "the target is not registered for that range";
    case kAborted: return "the peer's queue pair was reset";
    case kBadQueuePair: return "the peer's queue pair does not exist";
    case kNotReady: return "the peer had no receive left";
    case kUnresponsive: return "the peer stopped answering";
    case kUnknownPeer: return "the peer's device does not know this one";
    case kUnreachable:
      return "the peer never answered: is all traffic allowed in its security group, both ways?";
    case kFeatureMismatch: return "the peer's device does not offer RDMA write";
    default: return "the request failed";
  }
}

}  // namespace

Failure meaning(const ibv_wc& completion) {
  if (completion.status == IBV_WC_WR_FLUSH_ERR) return Failure::kFlushed;
  switch (completion.vendor_err) {
    case kInvalidKey: return Failure::kSource;
    case kBadAddress: return Failure::kTarget;
    case kBadLength:
    case kFeatureMismatch: return Failure::kUnable;
    default: return Failure::kConnection;
  }
}

std::string text_of(const ibv_wc& completion) {
  return std::string(name_of(completion.vendor_err)) + " (EFA status " +
         std::to_string(completion.vendor_err) + ")";
}

}  // namespace mkernel::transport::efa
