#include "tools/mkbench/fabric_end.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tools/mkbench/random.h"

namespace mkernel::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBytesInFlight = 16 << 20;
constexpr std::chrono::microseconds kSpin{50};  ///< as the daemon's proxies do before they sleep

Result<memory::Region> make_region(std::uint64_t bytes) {
  memory::Region region;
  region.kind = abi::RegionKind::kHostMemory;
  region.bytes = bytes;
  auto fd = ipc::create_shared_memory("mkbench", bytes);
  if (!fd.ok()) return fd.status();
  region.fd = std::move(*fd);
  auto mapping = ipc::Mapping::map(region.fd.get(), 0, bytes);
  if (!mapping.ok()) return mapping.status();
  region.mapping = std::move(*mapping);
  return region;
}

transport::Identity identity(bool sends) {
  return {sends ? "sender" : "receiver", sends ? 1U : 2U};
}

}  // namespace

Layout layout_for(std::uint32_t bytes) {
  const std::uint64_t slot = (std::uint64_t{std::max(bytes, 1U)} + 63) & ~std::uint64_t{63};
  return {bytes, slot, std::clamp<std::uint64_t>(kBytesInFlight / slot, 2, 512)};
}

Result<std::unique_ptr<End>> End::make(const MakeTransport& make, Pipe& pipe, const Layout& layout,
                                       bool sends) {
  std::unique_ptr<End> end(new End(pipe, layout, sends));
  auto region = make_region(layout.slot * layout.slots);
  if (!region.ok()) return region.status();
  end->region_ = std::move(*region);
  transport::TransportOptions options;
  options.identity = identity(sends);
  auto made = make(options);
  if (!made.ok()) return made.status();
  end->transport_ = std::move(*made);
  end->transport_->attach(*end);
  return end;
}

Status End::connect(const std::string& other_endpoint) {
  MK_RETURN_IF_ERROR(transport_->connect(0, {identity(!sends_), other_endpoint}));
  takes_messages_ = true;
  for (const std::string& message : std::exchange(early_, {}))
    transport_->receive_from_peer(0, std::as_bytes(std::span(message)));
  MK_RETURN_IF_ERROR(sends_ ? transport_->open_outbound(kForth, 0, 1)
                            : transport_->open_inbound(kForth, 0, 1));
  return sends_ ? transport_->open_inbound(kBack, 0, 2) : transport_->open_outbound(kBack, 0, 2);
}

Result<std::optional<nlohmann::json>> End::turn() {
  if (transport_->poll() > 0) {
    last_event_ = Clock::now();
  } else if (Clock::now() - last_event_ > kSpin) {
    pollfd wanted[] = {{transport_->event_fd(), POLLIN, 0}, {pipe_.fd(), POLLIN, 0}};
    ::poll(wanted, 2, 1);
  }
  if (!failure_.ok()) return failure_;
  while (answered_.has_value() && *answered_ < arrived_ && submit_one()) ++*answered_;
  auto received = pipe_.receive();
  if (!received.ok()) return received.status();
  if (!received->has_value()) return std::optional<nlohmann::json>();
  if ((*received)->word.has_value()) return (*received)->word;
  if (takes_messages_) {
    transport_->receive_from_peer(0, std::as_bytes(std::span((*received)->message)));
  } else {
    early_.push_back(std::move((*received)->message));
  }
  last_event_ = Clock::now();
  return std::optional<nlohmann::json>();
}

bool End::wait_arrived(std::uint64_t count, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (arrived_ < count && Clock::now() < end) transport_->poll();
  return arrived_ == count;
}

bool End::submit_one() {
  const std::uint64_t offset = (submitted_ % layout_.slots) * layout_.slot;
  const transport::Put put{.channel = sends_ ? kForth : kBack,
                           .sequence = submitted_ + 1,
                           .source = &region_,
                           .source_offset = offset,
                           .remote_offset = offset,
                           .length = layout_.bytes,
                           .remote_region = 0};
  if (transport_->submit({&put, 1}) == 0) return false;
  ++submitted_;
  return true;
}

void End::fill(std::uint64_t round) {
  for (std::uint64_t i = 0; i < region_.bytes / 8; ++i)
    *region_.mapping.at<std::uint64_t>(i * 8) = mix(round, i);
}

bool End::holds(std::uint64_t round) const {
  for (std::uint64_t begin = 0; begin + layout_.slot <= region_.bytes; begin += layout_.slot) {
    const std::uint64_t end = begin + layout_.bytes;
    for (std::uint64_t at = begin; at < end; at += 8) {
      const std::uint64_t expected = mix(round, at / 8);
      if (std::memcmp(region_.host(at), &expected, std::min<std::uint64_t>(8, end - at)) != 0) return false;
    }
  }
  return true;
}

Status End::place(transport::ChannelId, std::uint16_t, std::uint64_t offset, std::uint32_t length,
                  transport::Target& target) {
  if (!memory::in_bounds(offset, length, region_.bytes))
    return {StatusCode::kOutOfRange, "outside the region"};
  target = {&region_, offset};
  return {};
}

Status End::arrival_word(transport::ChannelId channel, transport::ArrivalWord& place) {
  place = {&words_[channel], std::as_writable_bytes(std::span(words_))};
  return {};
}

void End::send_to_peer(transport::PeerId, std::span<const std::byte> message) {
  const Status sent = pipe_.send_message(message);
  if (!sent.ok()) failure_ = sent;
}

}  // namespace mkernel::bench
