#include "client/src/failure.h"

#include <atomic>

#include "proto/ipc/packet.h"

namespace mkernel::client {

void raise_failure(abi::FailureRecord& record, std::uint32_t& abort, std::int32_t culprit,
                   const std::string& node, const Status& why) {
  std::atomic_ref<std::uint32_t> word(abort);
  if (word.load(std::memory_order_acquire) != 0) return;
  record.code = static_cast<std::uint32_t>(why.code());
  record.culprit = culprit;
  ipc::copy_text(record.node, node);
  ipc::copy_text(record.text, why.text());
  word.store(record.code, std::memory_order_release);
}

void raise_failure(abi::GroupSegment& group, const std::string& node, const Status& why) {
  // The record of a group that has ended is there already, and may be read.
  if (std::atomic_ref(group.ended).load(std::memory_order_acquire) == 0)
    return raise_failure(group.failure, group.abort, -1, node, why);
  std::atomic_ref(group.abort).store(static_cast<std::uint32_t>(why.code()), std::memory_order_release);
}

Status read_failure(const abi::GroupSegment& group) {
  const Status aborted = read_failure(group.failure, group.abort);
  return aborted.ok() ? read_failure(group.failure, group.ended) : aborted;
}

Status read_failure(const abi::FailureRecord& record, const std::uint32_t& abort) {
  const std::uint32_t code =
      std::atomic_ref(const_cast<std::uint32_t&>(abort)).load(std::memory_order_acquire);
  if (code == 0) return {};
  std::string text(ipc::text_of(record.text));
  const std::string node(ipc::text_of(record.node));
  if (record.culprit >= 0) {
    text = "rank " + std::to_string(record.culprit) + (node.empty() ? "" : " on node " + node) + ": " + text;
  } else if (!node.empty() && text.find(node) == std::string::npos) {
    text = "node " + node + ": " + text;
  }
  return {static_cast<StatusCode>(code), text};
}

}  // namespace mkernel::client
