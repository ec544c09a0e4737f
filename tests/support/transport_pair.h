// Two transports of one kind joined by a wire that tests can damage, and traffic between them that checks the
// delivery contract at every callback. Used by the conformance suite.
//
// Every payload is a function of (channel key, put number): the receiver verifies each put byte for byte, at
// the moment it is reported, with no state shared with the sender but the numbers of puts submitted and seen.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "daemon/transport/transport.h"
#include "tests/support/put_payload.h"

namespace mkernel::test {

using transport::ChannelId;
using transport::ChannelKey;
using transport::LinkShape;
using transport::PeerId;
using transport::Transport;
using transport::TransportOptions;

enum class Fault { kDelay, kDrop, kDuplicate, kReorder, kCut };

class Node;

/// How transports of one kind are made, joined and disturbed. Implemented once per kind.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::string name() const = 0;
  virtual Result<std::unique_ptr<Transport>> make(const TransportOptions& options) = 0;
  /// What a peer is told to dial; a kind may put something of its own in between.
  virtual std::string endpoint(const Transport& target) { return target.local_endpoint(); }
  virtual bool can(Fault fault) const = 0;
  /// What the regions of the traffic pass for.
  virtual abi::RegionKind memory_kind() const { return abi::RegionKind::kHostMemory; }
  /// place() is called for every put, when it begins. Not so where the sender writes into place by itself.
  virtual bool announces_puts() const { return true; }
  /// How many times longer than usual the traffic may take.
  virtual int patience() const { return 1; }
  /// Shapes the direction out of `node`. On the node's thread.
  virtual Status shape(Node& node, const LinkShape& shape) = 0;
  /// False so soon after the last cut that the connection need not have come back. Any thread.
  virtual bool may_cut() { return true; }
  /// Loses the connection, in both directions, until heal(). On the node's thread.
  virtual void cut(Node& node) = 0;
  virtual void heal(Node& node) = 0;
  /// Faults that really happened on the way out of `node`, for tests that must not pass without any.
  virtual std::uint64_t injected(Node& node, Fault fault) = 0;
};

/// The kind that this executable tests; one source file of each executable defines it.
std::unique_ptr<Wire> make_wire();

/// A stream of puts on one channel. Put n has `length(n)` bytes and uses slot n % slots at both ends, so that
/// at most `slots` are in flight. "Completed" says no more than that a put is in place: the target's slot is
/// used again only when the receiving node has seen it, as ranks must tell each other too.
struct Stream {
  ChannelKey key = 0;
  std::atomic<std::uint64_t> puts{0};  ///< lowered by Node::stop()
  std::uint32_t slots = 4;
  std::uint32_t max_bytes = 4096;
  std::function<std::uint32_t(std::uint64_t)> length;
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> seen{0};  ///< verified by the receiving node

  std::uint64_t stride() const { return max_bytes + kGuard; }
  std::uint64_t offset(std::uint64_t number) const { return (number % slots) * stride(); }
  static constexpr std::uint64_t kGuard = 64;  ///< poisoned bytes behind each slot
};

/// A region that passes for one of this kind, and is host memory, poisoned.
std::shared_ptr<memory::Region> make_region(std::uint64_t bytes, abi::RegionKind kind);

/// One end: a transport, and a sink that owns memory and checks every callback. One thread at a time.
class Node final : public transport::TransportSink {
 public:
  Node(std::string name, std::unique_ptr<Transport> transport, PeerId peer, abi::RegionKind memory_kind);
  /// The transport before the memory that it may still write to.
  ~Node() override { kill(); }

  /// Both ends of a stream: `source` sends, `target` receives. Returns the channel's id at each end.
  ChannelId send(Stream& stream, std::uint16_t target_region);
  ChannelId receive(Stream& stream);
  std::uint16_t region_of(ChannelId inbound) const { return inbound_.at(inbound).region; }
  memory::Region& region(std::uint16_t index) { return *regions_.at(index); }
  memory::Region& source_of(ChannelId outbound) { return *outbound_.at(outbound).source; }
  /// Unregisters memory as the data plane does it: no put is accepted there from now on, and none is sent
  /// from there. What is reported for it later is not looked at.
  void retire(const memory::Region& region);
  /// The transport holds the region, or a put from there waits for the transport.
  bool in_use(const memory::Region& region) const;

  /// Messages of the node's transport go to this one, once it is told that it may take them.
  void talk_to(Node& other) { other_ = &other; }
  void take_messages() { takes_messages_ = true; }
  /// Readable when a message waits. Any thread.
  int message_fd() const { return message_event_.get(); }

  /// Submits what the windows take, polls. Returns the number of things that happened.
  std::size_t pump();
  /// Every outbound stream is completed and every inbound one has arrived, failed and closed ones left out.
  bool done() const;
  void close_channel(ChannelId channel);
  /// Submits nothing new: outbound streams end with what was prepared. On the node's thread.
  void stop();
  /// Called at every pump, on the node's thread.
  std::function<void(Node&)> disturb;

  Transport& transport() { return *transport_; }
  const std::string& name() const { return name_; }
  PeerId peer() const { return peer_; }
  std::uint64_t arrived(ChannelId channel) const { return inbound_.at(channel).arrived; }
  std::uint64_t completed(ChannelId channel) const { return outbound_.at(channel).completed; }
  /// Puts that were prepared; the last ones may wait for room in the transport.
  std::uint64_t submitted(ChannelId channel) const { return outbound_.at(channel).prepared; }
  /// place() calls for the channel: puts that were begun, each time they were.
  std::uint64_t begun(ChannelId channel) const { return inbound_.at(channel).begun; }
  std::size_t refused_submits() const { return refused_submits_; }
  /// The first breach of the contract that was seen; empty = none.
  const std::string& violation() const { return violation_; }
  /// Slots that no put may touch any more are as they were left; call at the end of traffic.
  std::string untouched() const;
  bool connected() const { return connected_; }
  const Status& peer_status() const { return peer_status_; }
  /// What path_changed() has told, in order.
  struct PathChange {
    std::string path;
    Status lost;
  };
  const std::vector<PathChange>& paths() const { return paths_; }
  bool path_lost() const { return !paths_.empty() && !paths_.back().lost.ok(); }
  Status channel_status(ChannelId channel) const;
  void kill() { transport_.reset(); }

  Status place(ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               transport::Target& target) override;
  void arrived(ChannelId channel, std::uint64_t count) override;
  void completed(ChannelId channel, std::uint64_t count) override;
  void channel_failed(ChannelId channel, const Status& why) override;
  void peer_connected(PeerId peer) override;
  void peer_failed(PeerId peer, const Status& why) override;
  void path_changed(PeerId peer, std::string_view path, const Status& lost) override;
  Status arrival_word(ChannelId channel, transport::ArrivalWord& place) override;
  void send_to_peer(PeerId peer, std::span<const std::byte> message) override;

 private:
  struct Outbound {
    Stream* stream = nullptr;
    std::shared_ptr<memory::Region> source;
    std::uint16_t target_region = 0;
    std::uint64_t prepared = 0;
    std::uint64_t completed = 0;
  };
  struct Inbound {
    Stream* stream = nullptr;
    std::uint16_t region = 0;
    std::uint64_t arrived = 0;
    std::uint64_t begun = 0;
  };

  static constexpr std::size_t kMaxWords = 4096;

  void prepare();
  bool is_retired(const memory::Region& region) const;
  std::size_t receive_messages();
  void violate(const std::string& what);
  void verify(const Inbound& inbound, std::uint64_t number);
  bool over(ChannelId channel) const { return failed_.contains(channel) || closed_.contains(channel); }

  std::string name_;
  std::unique_ptr<Transport> transport_;
  PeerId peer_;
  const abi::RegionKind memory_kind_;
  ChannelId next_channel_ = 0;
  std::map<ChannelId, Outbound> outbound_;
  std::map<ChannelId, Inbound> inbound_;
  std::map<ChannelId, Status> failed_;
  std::map<ChannelId, bool> closed_;
  std::vector<std::shared_ptr<memory::Region>> regions_;
  std::vector<const memory::Region*> retired_;
  std::vector<transport::Put> pending_;  ///< prepared, not taken yet
  std::vector<std::uint64_t> words_;     ///< arrival counts by channel, for transports that publish
  Node* other_ = nullptr;
  bool takes_messages_ = false;
  std::mutex message_mutex_;
  std::deque<std::vector<std::byte>> messages_;  ///< from the other node, not taken yet
  ipc::UniqueFd message_event_;
  std::size_t refused_submits_ = 0;
  bool connected_ = false;
  Status peer_status_;
  std::vector<PathChange> paths_;
  std::string violation_;
};

enum class Threads { kOne, kTwo };

/// Nodes a and b, joined.
class TransportPair {
 public:
  struct Options {
    std::chrono::milliseconds peer_timeout{30000};
    bool connect = true;
  };
  TransportPair() : TransportPair(Options{}) {}
  explicit TransportPair(const Options& options);

  /// A stream of `puts` puts of up to `max_bytes` from `from` to the other node; `length` as in Stream.
  struct Ends {
    ChannelId out;
    ChannelId in;
  };
  Ends stream(Node& from, std::uint64_t puts, std::uint32_t slots, std::uint32_t max_bytes,
              std::function<std::uint32_t(std::uint64_t)> length);

  Stream& make_stream(std::uint64_t puts, std::uint32_t slots, std::uint32_t max_bytes,
                      std::function<std::uint32_t(std::uint64_t)> length);

  /// Tells one node of the other; `boot_error` is added to the other's boot id.
  void connect_a(std::uint64_t boot_error = 0);
  void connect_b(std::uint64_t boot_error = 0);
  /// Pumps both `times` times.
  void pump(int times = 1);
  /// Pumps both until `condition`, a violation or the deadline. Returns whether the condition came true.
  bool run_until(const std::function<bool()>& condition,
                 std::chrono::seconds deadline = std::chrono::seconds(50));
  /// Runs the traffic to its end and checks everything; returns the first thing that is wrong, or "".
  std::string run(Threads threads, std::chrono::seconds deadline = std::chrono::seconds(50));
  std::string violation() const;
  /// Times that run_until() waited for the event fds until its limit, and there was something to do after
  /// all.
  std::size_t overslept() const { return overslept_; }

  Node& a() { return *a_; }
  Node& b() { return *b_; }
  Node& other(Node& node) { return &node == a_.get() ? *b_ : *a_; }
  Wire& wire() { return *wire_; }

 private:
  bool run_two_threads(std::chrono::seconds deadline);

  std::unique_ptr<Wire> wire_;
  transport::Identity identity_a_;
  transport::Identity identity_b_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<Node> a_;
  std::unique_ptr<Node> b_;
  std::size_t overslept_ = 0;
  ChannelKey next_key_ = 0x1234567800000000ULL;
};

}  // namespace mkernel::test
