#include "daemon/cluster/peer.h"

#include <algorithm>

#include "daemon/base/hex.h"

namespace mkernel::cluster {
namespace {

constexpr std::size_t kMaxUnacknowledged = std::size_t{1} << 16;
constexpr std::size_t kMaxUnacknowledgedBytes = std::size_t{64} << 20;

std::chrono::milliseconds scaled(std::chrono::milliseconds time, double scale) {
  const auto ms = static_cast<std::int64_t>(static_cast<double>(time.count()) * scale);
  return std::chrono::milliseconds(std::max<std::int64_t>(ms, 1));
}

}  // namespace

PeerTimes::PeerTimes(double scale)
    : keepalive(scaled(std::chrono::seconds(1), scale)),
      warn(scaled(std::chrono::seconds(5), scale)),
      error(scaled(std::chrono::seconds(20), scale)),
      dead(scaled(std::chrono::seconds(60), scale)) {}

const char* to_string(Silence silence) {
  switch (silence) {
    case Silence::kAlive: return "alive";
    case Silence::kWarn: return "warn";
    case Silence::kError: return "error";
    case Silence::kDead: return "dead";
  }
  return "dead";
}

PeerRecord::PeerRecord(transport::PeerId id, const v1::Hello& hello, std::string address, std::uint64_t epoch,
                       TimePoint now)
    : address_(std::move(address)), version_(hello.software_version()), epoch_(epoch), last_heard_(now) {
  info_.id = id;
  info_.node = hello.node();
  info_.boot_id = hello.boot_id();
}

void PeerRecord::set_rails(const v1::Hello& hello) {
  info_.rails.clear();
  for (const v1::Endpoint& endpoint : hello.endpoints()) {
    info_.rails.push_back({{hello.node(), hello.boot_id()}, endpoint.address()});
  }
}

std::string PeerRecord::describe() const {
  return "node " + node() + " (boot " + base::hex(boot_id()) + ")";
}

bool PeerRecord::enqueue(v1::PeerMessage message) {
  message.set_sequence(++sent_);
  unacknowledged_bytes_ += message.ByteSizeLong();
  unacknowledged_.push_back(std::move(message));
  return unacknowledged_.size() <= kMaxUnacknowledged && unacknowledged_bytes_ <= kMaxUnacknowledgedBytes;
}

const v1::PeerMessage* PeerRecord::after(std::uint64_t sequence) const {
  if (unacknowledged_.empty() || sequence >= sent_) return nullptr;
  const std::uint64_t first = unacknowledged_.front().sequence();
  return &unacknowledged_[sequence < first ? 0 : sequence + 1 - first];
}

bool PeerRecord::acknowledge(std::uint64_t received) {
  while (!unacknowledged_.empty() && unacknowledged_.front().sequence() <= received) {
    unacknowledged_bytes_ -= unacknowledged_.front().ByteSizeLong();
    unacknowledged_.pop_front();
  }
  return received <= sent_;
}

PeerRecord::Take PeerRecord::take(std::uint64_t sequence) {
  if (sequence <= received_) return Take::kDuplicate;
  if (sequence != received_ + 1) return Take::kGap;
  received_ = sequence;
  return Take::kNew;
}

std::uint64_t PeerRecord::take_unreported() {
  const std::uint64_t count = unreported();
  reported_ = received_;
  return count;
}

Silence PeerRecord::silence(TimePoint now, const PeerTimes& times) const {
  const auto silent = now - last_heard_;
  if (silent >= times.dead) return Silence::kDead;
  if (silent >= times.error) return Silence::kError;
  return silent >= times.warn ? Silence::kWarn : Silence::kAlive;
}

}  // namespace mkernel::cluster
