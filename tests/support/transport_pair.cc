#include "tests/support/transport_pair.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace mkernel::test {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr std::byte kScribble{0x5e};
constexpr std::size_t kBatch = 64;

bool all_poison(const std::byte* begin, std::uint64_t bytes) {
  return bytes == 0 || (begin[0] == kPoison && std::memcmp(begin, begin + 1, bytes - 1) == 0);
}

bool wait_readable(const std::vector<int>& fds, int milliseconds) {
  std::vector<pollfd> wanted;
  for (const int fd : fds) wanted.push_back({fd, POLLIN, 0});
  return ::poll(wanted.data(), wanted.size(), milliseconds) > 0;
}

}  // namespace

std::shared_ptr<memory::Region> make_region(std::uint64_t bytes, abi::RegionKind kind) {
  static std::atomic<std::uint64_t> next_id{1};
  auto region = std::make_shared<memory::Region>();
  region->id = next_id++;
  region->kind = kind;
  region->bytes = bytes;
  region->fd = ipc::create_shared_memory("conformance", bytes).value();
  region->mapping = ipc::Mapping::map(region->fd.get(), 0, bytes).value();
  std::memset(region->host(0), static_cast<int>(kPoison), bytes);
  return region;
}

Node::Node(std::string name, std::unique_ptr<Transport> transport, PeerId peer, abi::RegionKind memory_kind)
    : name_(std::move(name)),
      transport_(std::move(transport)),
      peer_(peer),
      memory_kind_(memory_kind),
      words_(kMaxWords),
      message_event_(ipc::create_event().value()) {
  transport_->attach(*this);
}

void Node::violate(const std::string& what) {
  if (violation_.empty()) violation_ = name_ + ": " + what;
}

ChannelId Node::send(Stream& stream, std::uint16_t target_region) {
  const ChannelId id = next_channel_++;
  outbound_[id] = {&stream, make_region(stream.slots * stream.stride(), memory_kind_), target_region};
  const Status opened = transport_->open_outbound(id, peer_, stream.key);
  if (!opened.ok()) violate("open_outbound: " + opened.to_string());
  return id;
}

ChannelId Node::receive(Stream& stream) {
  const ChannelId id = next_channel_++;
  regions_.push_back(make_region(stream.slots * stream.stride(), memory_kind_));
  inbound_[id] = {&stream, static_cast<std::uint16_t>(regions_.size() - 1)};
  const Status opened = transport_->open_inbound(id, peer_, stream.key);
  if (!opened.ok()) violate("open_inbound: " + opened.to_string());
  return id;
}

void Node::prepare() {
  for (auto& [id, out] : outbound_) {
    Stream& stream = *out.stream;
    while (!over(id) && !is_retired(*out.source) && pending_.size() < kBatch && out.prepared < stream.puts &&
           out.prepared - std::min(out.completed, stream.seen.load()) < stream.slots) {
      const std::uint64_t number = ++out.prepared;
      const std::uint32_t length = stream.length(number);
      fill_payload(out.source->host(stream.offset(number)), length, stream.key, number);
      pending_.push_back({.channel = id,
                          .sequence = number,
                          .source = out.source.get(),
                          .source_offset = stream.offset(number),
                          .remote_offset = stream.offset(number),
                          .length = length,
                          .remote_region = out.target_region});
      stream.submitted.store(number);
    }
  }
}

std::size_t Node::pump() {
  if (disturb) disturb(*this);
  std::size_t happened = receive_messages();
  if (pending_.empty()) prepare();
  if (!pending_.empty()) {
    const std::size_t taken = transport_->submit(pending_);
    if (taken > pending_.size()) violate("submit took more than it was given");
    if (taken < pending_.size()) ++refused_submits_;
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(taken));
    happened += taken;
  }
  return happened + transport_->poll();
}

std::size_t Node::receive_messages() {
  if (!takes_messages_) return 0;
  std::deque<std::vector<std::byte>> messages;
  {
    const std::lock_guard lock(message_mutex_);
    messages.swap(messages_);
    std::uint64_t drained = 0;
    [[maybe_unused]] const auto got = ::read(message_event_.get(), &drained, sizeof(drained));
  }
  for (const auto& message : messages) transport_->receive_from_peer(peer_, message);
  return messages.size();
}

void Node::send_to_peer(PeerId peer, std::span<const std::byte> message) {
  if (peer != peer_ || other_ == nullptr) return violate("send_to_peer() to nobody");
  const std::lock_guard lock(other_->message_mutex_);
  other_->messages_.emplace_back(message.begin(), message.end());
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(other_->message_event_.get(), &one, sizeof(one));
}

Status Node::arrival_word(ChannelId channel, transport::ArrivalWord& place) {
  if (!inbound_.contains(channel) || closed_.contains(channel) || channel >= words_.size()) {
    violate("arrival_word() for channel " + std::to_string(channel) + ", which is not open");
    return {StatusCode::kInternal, "not open"};
  }
  place = {&words_[channel], std::as_writable_bytes(std::span(words_))};
  return {};
}

bool Node::done() const {
  const auto sent = [&](const auto& entry) {
    return over(entry.first) || entry.second.completed == entry.second.stream->puts;
  };
  const auto received = [&](const auto& entry) {
    return over(entry.first) || entry.second.arrived == entry.second.stream->puts;
  };
  return std::all_of(outbound_.begin(), outbound_.end(), sent) &&
         std::all_of(inbound_.begin(), inbound_.end(), received);
}

void Node::close_channel(ChannelId channel) {
  transport_->close_channel(channel);
  closed_[channel] = true;
  std::erase_if(pending_, [&](const transport::Put& put) { return put.channel == channel; });
}

void Node::retire(const memory::Region& region) {
  retired_.push_back(&region);
  transport_->retire(region);
}

bool Node::in_use(const memory::Region& region) const {
  return transport_->holds(region) ||
         std::any_of(pending_.begin(), pending_.end(),
                     [&region](const transport::Put& put) { return put.source == &region; });
}

bool Node::is_retired(const memory::Region& region) const {
  return std::find(retired_.begin(), retired_.end(), &region) != retired_.end();
}

void Node::stop() {
  for (auto& [id, out] : outbound_) out.stream->puts.store(out.prepared);
}

Status Node::channel_status(ChannelId channel) const {
  const auto at = failed_.find(channel);
  return at == failed_.end() ? Status{} : at->second;
}

Status Node::place(ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
                   transport::Target& target) {
  const auto at = inbound_.find(channel);
  if (at == inbound_.end() || closed_.contains(channel)) {
    violate("place() for channel " + std::to_string(channel) + ", which is not open");
    return {StatusCode::kInternal, "not open"};
  }
  if (region >= regions_.size() || !memory::in_bounds(offset, length, regions_[region]->bytes)) {
    return {StatusCode::kOutOfRange, "[" + std::to_string(offset) + ", +" + std::to_string(length) +
                                         ") lies outside region " + std::to_string(region)};
  }
  if (is_retired(*regions_[region])) {
    return {StatusCode::kNotFound, "region " + std::to_string(region) + " is not registered any more"};
  }
  ++at->second.begun;
  target = {regions_[region].get(), offset};
  return {};
}

void Node::verify(const Inbound& inbound, std::uint64_t number) {
  if (is_retired(*regions_[inbound.region])) return;
  const Stream& stream = *inbound.stream;
  std::byte* slot = regions_[inbound.region]->host(stream.offset(number));
  const std::uint32_t length = stream.length(number);
  static thread_local std::vector<std::byte> expected;
  expected.resize(std::max<std::size_t>(expected.size(), length + 1));  // never empty: data() is not null
  fill_payload(expected.data(), length, stream.key, number);
  if (std::memcmp(slot, expected.data(), length) != 0) {
    violate("put " + std::to_string(number) + " of channel key " + std::to_string(stream.key) + " (" +
            std::to_string(length) + " bytes) was reported, but its payload is not in place");
  }
  if (!all_poison(slot + length, stream.stride() - length)) {
    violate("bytes behind put " + std::to_string(number) + " were written to");
  }
  std::memset(slot, static_cast<int>(kPoison), length);
}

void Node::arrived(ChannelId channel, std::uint64_t count) {
  const auto at = inbound_.find(channel);
  if (at == inbound_.end() || over(channel)) return violate("arrived() on a channel that is not open");
  Inbound& inbound = at->second;
  if (count <= inbound.arrived) {
    return violate("arrivals went from " + std::to_string(inbound.arrived) + " to " + std::to_string(count));
  }
  if (count > inbound.stream->submitted.load()) return violate("arrived() beyond what was submitted");
  for (std::uint64_t number = inbound.arrived + 1; number <= count; ++number) verify(inbound, number);
  inbound.arrived = count;
  inbound.stream->seen.store(count);
}

void Node::completed(ChannelId channel, std::uint64_t count) {
  const auto at = outbound_.find(channel);
  if (at == outbound_.end() || over(channel)) return violate("completed() on a channel that is not open");
  Outbound& out = at->second;
  if (count <= out.completed || count > out.prepared) {
    return violate("completed went from " + std::to_string(out.completed) + " to " + std::to_string(count) +
                   " of " + std::to_string(out.prepared));
  }
  // The sources are free: whoever still reads them delivers garbage.
  for (std::uint64_t number = out.completed + 1; number <= count; ++number) {
    if (is_retired(*out.source)) continue;
    std::memset(out.source->host(out.stream->offset(number)), static_cast<int>(kScribble),
                out.stream->length(number));
  }
  out.completed = count;
}

void Node::channel_failed(ChannelId channel, const Status& why) {
  if (closed_.contains(channel)) violate("channel_failed() on a closed channel");
  if (why.ok() || !failed_.emplace(channel, why).second)
    violate("channel_failed() twice, or without a reason");
}

void Node::peer_connected(PeerId peer) {
  if (peer != peer_) violate("peer_connected() for a peer nobody knows");
  connected_ = true;
}

void Node::peer_failed(PeerId peer, const Status& why) {
  if (peer != peer_ || why.ok() || !peer_status_.ok())
    violate("peer_failed() for nobody, for no reason, or twice");
  peer_status_ = why;
}

void Node::path_changed(PeerId peer, std::string_view path, const Status& lost) {
  if (peer != peer_ || path.empty()) violate("path_changed() for nobody, or for no path");
  if (!connected_ || !peer_status_.ok()) violate("path_changed() of a peer that is not connected");
  if (path_lost() && !lost.ok()) violate("a path was lost twice");
  paths_.push_back({std::string(path), lost});
}

std::string Node::untouched() const {
  for (const auto& [id, inbound] : inbound_) {
    const auto& region = *regions_[inbound.region];
    if (!over(id) && !is_retired(region) && !all_poison(region.host(0), region.bytes)) {
      return name_ + ": memory of channel " + std::to_string(id) +
             " was written to after its puts were reported";
    }
  }
  return {};
}

TransportPair::TransportPair(const Options& options) : wire_(make_wire()) {
  static std::atomic<std::uint64_t> boot{
      std::random_device()()};  // names sockets: unique among running tests
  identity_a_ = {"node-a", ++boot};
  identity_b_ = {"node-b", ++boot};
  TransportOptions common;
  common.peer_timeout = options.peer_timeout;
  common.reconnect_interval = std::chrono::milliseconds(2);
  common.identity = identity_a_;
  a_ = std::make_unique<Node>("a", wire_->make(common).value(), 7, wire_->memory_kind());
  common.identity = identity_b_;
  b_ = std::make_unique<Node>("b", wire_->make(common).value(), 3, wire_->memory_kind());
  a_->talk_to(*b_);
  b_->talk_to(*a_);
  if (!options.connect) return;
  connect_a();
  connect_b();
}

void TransportPair::connect_a(std::uint64_t boot_error) {
  transport::Identity b = identity_b_;
  b.boot_id += boot_error;
  if (!a_->transport().connect(a_->peer(), {b, wire_->endpoint(b_->transport())}).ok()) std::terminate();
  a_->take_messages();
}

void TransportPair::connect_b(std::uint64_t boot_error) {
  transport::Identity a = identity_a_;
  a.boot_id += boot_error;
  if (!b_->transport().connect(b_->peer(), {a, wire_->endpoint(a_->transport())}).ok()) std::terminate();
  b_->take_messages();
}

Stream& TransportPair::make_stream(std::uint64_t puts, std::uint32_t slots, std::uint32_t max_bytes,
                                   std::function<std::uint32_t(std::uint64_t)> length) {
  streams_.push_back(std::make_unique<Stream>());
  Stream& stream = *streams_.back();
  stream.key = next_key_++;
  stream.puts = puts;
  stream.slots = slots;
  stream.max_bytes = max_bytes;
  stream.length = std::move(length);
  return stream;
}

TransportPair::Ends TransportPair::stream(Node& from, std::uint64_t puts, std::uint32_t slots,
                                          std::uint32_t max_bytes,
                                          std::function<std::uint32_t(std::uint64_t)> length) {
  Stream& stream = make_stream(puts, slots, max_bytes, std::move(length));
  const ChannelId in = other(from).receive(stream);
  return {from.send(stream, other(from).region_of(in)), in};
}

std::string TransportPair::violation() const {
  return a_->violation().empty() ? b_->violation() : a_->violation();
}

void TransportPair::pump(int times) {
  for (int i = 0; i < times; ++i) {
    a().pump();
    b().pump();
  }
}

bool TransportPair::run_until(const std::function<bool()>& condition, std::chrono::seconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline * wire_->patience();
  bool timed_out = false;
  while (violation().empty() && std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    const bool happened = a_->pump() + b_->pump() > 0;
    if (happened && timed_out) ++overslept_;
    timed_out = false;
    if (happened) continue;
    const bool disturbed = a_->disturb || b_->disturb;
    const bool woken = wait_readable({a_->transport().event_fd(), b_->transport().event_fd()},
                                     disturbed ? 1 : 50);  // both have taken their messages
    timed_out = !woken && !disturbed;
  }
  return condition();
}

bool TransportPair::run_two_threads(std::chrono::seconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline * wire_->patience();
  std::atomic<int> unfinished{2};
  std::atomic<bool> stop{false};
  const auto drive = [&](Node& node) {
    bool finished = false;
    while (unfinished.load() > 0 && !stop.load()) {
      const bool happened = node.pump() > 0;
      if (!finished && node.done()) {
        finished = true;
        unfinished.fetch_sub(1);
      }
      if (!node.violation().empty() || std::chrono::steady_clock::now() > end) stop.store(true);
      if (!happened) wait_readable({node.transport().event_fd(), node.message_fd()}, node.disturb ? 1 : 20);
    }
  };
  std::thread second([&] { drive(*b_); });
  drive(*a_);
  second.join();
  return unfinished.load() == 0;
}

std::string TransportPair::run(Threads threads, std::chrono::seconds deadline) {
  const auto both_done = [&] { return a_->done() && b_->done(); };
  const bool finished = threads == Threads::kTwo ? run_two_threads(deadline) : run_until(both_done, deadline);
  for (const Node* node : {a_.get(), b_.get()}) {
    if (!node->violation().empty()) return node->violation();
    if (!node->peer_status().ok()) return node->name() + ": peer failed: " + node->peer_status().to_string();
  }
  if (!finished) return "the traffic did not end before the deadline";  // some of it lies there unreported
  for (const Node* node : {a_.get(), b_.get()}) {
    if (!node->untouched().empty()) return node->untouched();
  }
  return "";
}

}  // namespace mkernel::test
