#include "client/src/lent_workspaces.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "client/src/ballot.h"
#include "client/src/buffer.h"
#include "client/src/group.h"
#include "kernels/base/lent_workspace.h"

namespace mkernel::client {
namespace {

/// Whether every rank has said the same number, and not 0.
Result<bool> all_have(GroupCore& group, std::uint32_t number) {
  auto ballots = group.vote(exchange_ballot(std::as_bytes(std::span(&number, 1))));
  if (!ballots.ok()) return ballots.status();
  return number != 0 && std::all_of(ballots->begin(), ballots->end(), [&](const Ballot& said) {
           return std::memcmp(said.data, &number, sizeof(number)) == 0;
         });
}

}  // namespace

Result<std::shared_ptr<BufferState>> LentWorkspaces::take(const std::shared_ptr<GroupCore>& group,
                                                          MemorySource& memory, std::uint64_t half_bytes) {
  const MutexLock lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.buffer.expired(); });
  // Ranks destroy operations at their own pace: what this one still has another one may have given back.
  std::shared_ptr<BufferState> fits;
  std::uint32_t number = 0;
  for (const Entry& entry : entries_) {
    auto buffer = entry.buffer.lock();
    if (buffer == nullptr || entry.memory != &memory || kernels::lent_half_bytes(buffer->bytes) < half_bytes)
      continue;
    fits = std::move(buffer);
    number = entry.number;
    break;
  }
  auto shared = all_have(*group, number);
  if (!shared.ok()) return shared.status();
  if (shared.value()) return fits;
  ++made_;
  if (half_bytes > largest_) half_bytes = largest_ = std::max(half_bytes, largest_ + largest_ / 2);
  const std::string text = "lent workspace " + std::to_string(made_);
  auto opened = open_symmetric(group, memory, kernels::lent_workspace_bytes(half_bytes),
                               [&](const BufferState&) -> Result<std::string> { return text; });
  if (!opened.ok()) return opened.status();
  std::shared_ptr<BufferState> made = std::move(*opened);
  entries_.push_back({made_, &memory, made});
  return made;
}

}  // namespace mkernel::client
