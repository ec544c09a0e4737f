#include "client/src/whereabouts.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "proto/ipc/packet.h"

namespace mkernel::client {
namespace {

constexpr std::size_t kMostTexts = 4;  ///< different ones in a line
constexpr std::size_t kMostRanks = 8;  ///< named with one text

abi::RankPhase phase_of(const abi::RankState& state) {
  return static_cast<abi::RankPhase>(
      std::atomic_ref(const_cast<std::uint32_t&>(state.phase)).load(std::memory_order_acquire));
}

/// Goes behind "is" or "are"; empty when nothing is known.
std::string text_of(const abi::RankState& state) {
  const std::string number = "launch " + std::to_string(state.launches);
  const std::string what(ipc::text_of(state.what));
  switch (phase_of(state)) {
    case abi::RankPhase::kJoined: return "in no launch and has made none";
    case abi::RankPhase::kLaunch: return "in " + number + ", " + what;
    case abi::RankPhase::kQueued:
      return "in or behind " + number + ", " + what + ", which is queued on a stream";
    case abi::RankPhase::kLaunched: return "in no launch, the last was " + number + ", " + what;
    case abi::RankPhase::kCollective:
      return "in a collective call, " + what + ", behind " + std::to_string(state.launches) + " launches";
    case abi::RankPhase::kRejected: return "without " + number + ", which it rejected: " + what;
    case abi::RankPhase::kUnreachable:
    case abi::RankPhase::kUnknown: break;
  }
  return {};
}

std::string names_of(const std::vector<std::uint32_t>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMostRanks; ++i)
    names += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMostRanks) names += " and " + std::to_string(ranks.size() - kMostRanks) + " more";
  return names + (ranks.size() == 1 ? " is " : " are ");
}

}  // namespace

void Whereabouts::attach(const kernels::GroupView& view) {
  const MutexLock lock(mutex_);
  view_ = &view;
  write(abi::RankPhase::kJoined, "");
}

void Whereabouts::write(abi::RankPhase phase, const std::string& what) {
  abi::RankState& own = view_->state(view_->rank());
  std::atomic_ref(own.launches).store(launches_);
  if (ipc::text_of(own.what) != std::string_view(what).substr(0, sizeof(own.what) - 1))
    ipc::copy_text(own.what, what);
  std::atomic_ref(own.phase).store(static_cast<std::uint32_t>(phase), std::memory_order_release);
}

Status Whereabouts::begin_launch(const std::string& operation, bool queued) {
  const MutexLock lock(mutex_);
  ++launches_;
  if (operation_ != operation) operation_ = operation;
  phase_ = queued ? abi::RankPhase::kQueued : abi::RankPhase::kLaunch;
  write(phase_, operation_);
  // Behind the store of `launches`: the daemon writes a rejection before it reads them.
  const std::uint32_t rejections = std::atomic_ref(view_->segment->rejections).load();
  return rejections == std::exchange(rejections_, rejections) ? Status() : rejection();
}

/// Of the launch that this rank has begun last.
Status Whereabouts::rejection() const {
  for (std::uint32_t rank = 0; rank < view_->world_size(); ++rank) {
    const abi::RankState& state = view_->state(rank);
    if (rank == view_->rank() || phase_of(state) != abi::RankPhase::kRejected || state.launches != launches_)
      continue;
    return {StatusCode::kInvalidArgument, "rank " + std::to_string(rank) + " rejected launch " +
                                              std::to_string(launches_) + ": " +
                                              std::string(ipc::text_of(state.what))};
  }
  return {};
}

std::uint64_t Whereabouts::reject_launch(const std::string& why) {
  const MutexLock lock(mutex_);
  phase_ = abi::RankPhase::kRejected;
  operation_ = why;
  ++launches_;
  // Before the number: a daemon that sees this launch counted, and has not been told, sees that it is not
  // made.
  std::atomic_ref(view_->state(view_->rank()).phase).store(static_cast<std::uint32_t>(phase_));
  write(phase_, operation_);
  return launches_;
}

bool Whereabouts::idle() const {
  const MutexLock lock(mutex_);
  return !in_call_ && phase_ != abi::RankPhase::kLaunch && phase_ != abi::RankPhase::kQueued;
}

void Whereabouts::end_launch() {
  const MutexLock lock(mutex_);
  phase_ = abi::RankPhase::kLaunched;
  write(phase_, operation_);
}

void Whereabouts::begin_call(const std::string& call) {
  const MutexLock lock(mutex_);
  in_call_ = true;
  write(abi::RankPhase::kCollective, call);
}

void Whereabouts::end_call() {
  const MutexLock lock(mutex_);
  in_call_ = false;
  write(phase_, operation_);
}

bool Whereabouts::all_known() const {
  for (std::uint32_t rank = 0; rank < view_->world_size(); ++rank) {
    const abi::RankState& state = view_->state(rank);
    const bool here = std::atomic_ref(const_cast<std::uint32_t&>(state.presence)).load() == 0;
    if (here && phase_of(state) == abi::RankPhase::kUnknown) return false;
  }
  return true;
}

std::string Whereabouts::describe(Deadline deadline) const {
  while (!all_known() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> texts;
  for (std::uint32_t rank = 0; rank < view_->world_size(); ++rank) {
    const std::string text = text_of(view_->state(rank));
    if (text.empty()) continue;
    auto found = texts.begin();
    while (found != texts.end() && found->first != text) ++found;
    if (found == texts.end()) found = texts.insert(found, {text, {}});
    found->second.push_back(rank);
  }
  if (view_->world_size() == 1 || texts.empty()) return {};
  if (texts.size() == 1 && texts[0].second.size() == view_->world_size())
    return "all ranks are " + texts[0].first;
  std::string line;
  for (std::size_t i = 0; i < texts.size() && i < kMostTexts; ++i)
    line += (i == 0 ? "" : "; ") + names_of(texts[i].second) + texts[i].first;
  if (texts.size() > kMostTexts) line += "; others are elsewhere";
  return line;
}

}  // namespace mkernel::client
