#include "tests/support/fake_transport.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace mkernel::test {

void FakeWire::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

void FakeWire::allow(std::uint64_t puts) {
  const std::lock_guard lock(mutex_);
  allowed_ += puts;
  wake();
}

void FakeWire::complete_at_once() {
  const std::lock_guard lock(mutex_);
  complete_at_once_ = true;
  for (auto& [key, channel] : outbound_) {
    channel.wanted = channel.submitted;
    due_.insert(key);
  }
  wake();
}

void FakeWire::complete(transport::ChannelKey key, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  outbound_.at(key).wanted = count;
  due_.insert(key);
  wake();
}

void FakeWire::fail_channel(transport::ChannelKey key, const Status& why) {
  const std::lock_guard lock(mutex_);
  channel_failures_.emplace_back(key, why);
  wake();
}

void FakeWire::fail_peer(transport::PeerId peer, const Status& why) {
  const std::lock_guard lock(mutex_);
  peer_failures_.emplace_back(peer, why);
  wake();
}

void FakeWire::change_path(transport::PeerId peer, const std::string& path, const Status& lost) {
  const std::lock_guard lock(mutex_);
  path_changes_.push_back({peer, path, lost});
  wake();
}

void FakeWire::inbound(transport::ChannelKey key, std::uint16_t region, std::uint64_t offset,
                       std::vector<std::byte> payload, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  inbound_puts_.push_back({key, region, offset, std::move(payload), count});
  wake();
}

void FakeWire::hold(const memory::Region& region) {
  const std::lock_guard lock(mutex_);
  held_.insert(&region);
}

void FakeWire::release(const memory::Region& region) {
  const std::lock_guard lock(mutex_);
  held_.erase(&region);
  wake();
}

void FakeWire::keep_busy(bool busy) {
  const std::lock_guard lock(mutex_);
  busy_ = busy;
}

std::size_t FakeWire::stopped_channels() const {
  const std::lock_guard lock(mutex_);
  return stopped_.size();
}

std::uint64_t FakeWire::asked_for_holds() const {
  const std::lock_guard lock(mutex_);
  return asked_for_holds_;
}

std::vector<RecordedPut> FakeWire::puts() const {
  const std::lock_guard lock(mutex_);
  return puts_;
}

std::size_t FakeWire::put_count() const {
  const std::lock_guard lock(mutex_);
  return put_count_;
}

std::size_t FakeWire::open_channels() const {
  const std::lock_guard lock(mutex_);
  return keys_.size();
}

bool FakeWire::forgotten(const memory::Region& region) const {
  const std::lock_guard lock(mutex_);
  return forgotten_.contains(&region);
}

bool FakeWire::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::vector<Status> FakeWire::refused_inbound() const {
  const std::lock_guard lock(mutex_);
  return refused_inbound_;
}

void FakeWire::record(bool puts, bool payload) {
  const std::lock_guard lock(mutex_);
  record_puts_ = puts;
  record_payload_ = payload;
}

FakeTransport::FakeTransport(std::shared_ptr<FakeWire> wire) : wire_(std::move(wire)) {
  capabilities_.name = "fake";
  capabilities_.max_put_bytes = 1U << 20;
  capabilities_.max_in_flight_puts = 1U << 20;
  auto event = ipc::create_event();
  if (!event.ok()) throw std::runtime_error(event.status().to_string());
  wire_->event_ = std::move(event).value();
}

Status FakeTransport::connect(transport::PeerId peer, const transport::PeerAddress&) {
  sink_->peer_connected(peer);
  return {};
}

Status FakeTransport::open(bool outbound, transport::ChannelId channel, transport::ChannelKey key) {
  const std::lock_guard lock(wire_->mutex_);
  auto& table = outbound ? wire_->outbound_ : wire_->inbound_;
  FakeWire::Channel fresh;
  fresh.id = channel;
  fresh.outbound = outbound;
  if (!table.emplace(key, fresh).second || !wire_->keys_.emplace(channel, key).second) {
    return {StatusCode::kAlreadyExists, "channel opened twice"};
  }
  return {};
}

Status FakeTransport::open_outbound(transport::ChannelId channel, transport::PeerId,
                                    transport::ChannelKey key) {
  return open(true, channel, key);
}

Status FakeTransport::open_inbound(transport::ChannelId channel, transport::PeerId,
                                   transport::ChannelKey key) {
  return open(false, channel, key);
}

void FakeTransport::close_channel(transport::ChannelId channel) {
  const std::lock_guard lock(wire_->mutex_);
  const auto found = wire_->keys_.find(channel);
  if (found == wire_->keys_.end()) throw std::logic_error("close of a channel that is not open");
  const auto outbound = wire_->outbound_.find(found->second);
  if (outbound != wire_->outbound_.end() && outbound->second.id == channel) {
    wire_->outbound_.erase(outbound);
  } else {
    wire_->inbound_.erase(found->second);
  }
  wire_->keys_.erase(found);
}

std::size_t FakeTransport::submit(std::span<const transport::Put> puts) {
  const std::lock_guard lock(wire_->mutex_);
  std::size_t taken = 0;
  for (const transport::Put& put : puts) {
    if (wire_->allowed_ == 0) break;
    --wire_->allowed_;
    const transport::ChannelKey key = wire_->keys_.at(put.channel);
    FakeWire::Channel& channel = wire_->outbound_.at(key);
    if (put.sequence != channel.submitted + 1) throw std::logic_error("put out of sequence");
    ++channel.submitted;
    if (wire_->complete_at_once_) {
      channel.wanted = channel.submitted;
      wire_->due_.insert(key);
    }
    ++wire_->put_count_;
    ++taken;
    if (!wire_->record_puts_) continue;
    RecordedPut record{put, key, {}};
    if (wire_->record_payload_ && put.length > 0) {
      const std::byte* from = put.source->host(put.source_offset);
      record.payload.assign(from, from + put.length);
    }
    wire_->puts_.push_back(std::move(record));
  }
  return taken;
}

std::size_t FakeTransport::poll() {
  std::unique_lock lock(wire_->mutex_);
  std::uint64_t drained = 0;
  [[maybe_unused]] const auto got = ::read(wire_->event_.get(), &drained, sizeof(drained));
  std::size_t events = 0;
  for (const transport::ChannelKey key : std::exchange(wire_->due_, {})) {
    const auto found = wire_->outbound_.find(key);
    if (found == wire_->outbound_.end()) continue;
    FakeWire::Channel& channel = found->second;
    if (channel.wanted <= channel.completed) continue;
    channel.completed = channel.wanted;
    sink_->completed(channel.id, channel.completed);
    ++events;
  }
  for (auto& put : std::exchange(wire_->inbound_puts_, {})) {
    const transport::ChannelId id = wire_->inbound_.at(put.key).id;
    transport::Target target;
    const Status placed =
        sink_->place(id, put.region, put.offset, static_cast<std::uint32_t>(put.payload.size()), target);
    ++events;
    if (!placed.ok()) {
      wire_->refused_inbound_.push_back(placed);
      continue;
    }
    std::copy(put.payload.begin(), put.payload.end(), target.region->host(target.offset));
    sink_->arrived(id, put.count);
  }
  for (const auto& [key, why] : std::exchange(wire_->channel_failures_, {})) {
    const auto found = wire_->outbound_.find(key);
    if (found == wire_->outbound_.end()) continue;  // closed meanwhile
    sink_->channel_failed(found->second.id, why);
    ++events;
  }
  for (const auto& [peer, path, lost] : std::exchange(wire_->path_changes_, {})) {
    sink_->path_changed(peer, path, lost);
    ++events;
  }
  for (const auto& [peer, why] : std::exchange(wire_->peer_failures_, {})) {
    sink_->peer_failed(peer, why);
    ++events;
  }
  for (const auto& [peer, text] : std::exchange(wire_->messages_, {})) {
    sink_->send_to_peer(peer, std::as_bytes(std::span(text)));
    ++events;
  }
  return events;
}

void FakeTransport::receive_from_peer(transport::PeerId peer, std::span<const std::byte> message) {
  const std::lock_guard lock(wire_->mutex_);
  const std::string text(reinterpret_cast<const char*>(message.data()), message.size());
  wire_->messages_.emplace_back(peer, "echo " + text);
}

int FakeTransport::event_fd() const {
  return wire_->event_.get();
}

void FakeTransport::quiesce(transport::ChannelId channel) {
  const std::lock_guard lock(wire_->mutex_);
  wire_->stopped_.insert(channel);
}

bool FakeTransport::quiet(transport::ChannelId) const {
  const std::lock_guard lock(wire_->mutex_);
  return !wire_->busy_;
}

bool FakeTransport::holds(const memory::Region& region) const {
  const std::lock_guard lock(wire_->mutex_);
  ++wire_->asked_for_holds_;
  return wire_->held_.contains(&region);
}

void FakeTransport::forget(const memory::Region& region) {
  const std::lock_guard lock(wire_->mutex_);
  wire_->forgotten_.insert(&region);
}

void FakeTransport::close() {
  const std::lock_guard lock(wire_->mutex_);
  wire_->closed_ = true;
}

}  // namespace mkernel::test
