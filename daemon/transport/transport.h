// The one interface that every transport implements: capabilities as data, one folder each.
//
// A transport carries the puts of many channels to many peers and keeps the delivery contract: when it
// reports arrived(c, n) at the receiver, the payloads of the first n puts of channel c are in place; when it
// reports completed(c, n) at the sender, the receiver has published n puts and the sources of the first n may
// be overwritten. Both counts only grow. A transport survives the loss of a connection by reconnecting and
// replaying, after the receiver fenced the old path and said how many puts it holds; only when a peer stays
// unreachable for longer than TransportOptions::peer_timeout does it report peer_failed.
//
// Thread rule: one proxy thread owns a transport; every call except the constructor, local_endpoint() and
// message_version() is made on that thread, and every call into the sink happens inside poll() or submit(),
// on that thread. No call blocks, but close_channel() may wait for the copies that a DMA engine has begun.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "daemon/memory/region.h"
#include "proto/abi/status.h"

namespace mkernel::transport {

/// A peer node in one of its lives. A daemon that restarts on the same address is a new peer with a new id.
using PeerId = std::uint32_t;
/// A channel end on this node, dense and small: an index. Not reused before close_channel().
using ChannelId = std::uint32_t;
/// The same channel on both nodes and on the wire: both daemons derive it from (group instance, source,
/// target, lane).
using ChannelKey = std::uint64_t;

/// The largest message that a transport may give to send_to_peer(): the peer links take it with what they put
/// around it.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{60} * 1024;

struct Capabilities {
  std::string name;  ///< "tcp", "emulated", ...
  bool gpu_memory = false;
  std::uint32_t max_put_bytes = 0;
  std::uint32_t max_in_flight_puts = 0;  ///< per channel: submitted and not completed
  /// The NIC writes arrival counts where the rank reads them (TransportSink::arrival_word); arrived() is for
  /// accounting, may come later, and must not be written over the word.
  bool publishes = false;
  /// TransportSink::place() is called for every put, with its length. Not so where the sender writes into
  /// place by itself.
  bool counts_bytes = true;
};

/// Who this node is, in every handshake: a peer refuses a connection that was meant for an earlier life of
/// its node.
struct Identity {
  std::string node;
  std::uint64_t boot_id = 0;
};

/// What a peer's daemon told ours about its transport (over gRPC).
struct PeerAddress {
  Identity identity;
  std::string endpoint;  ///< the peer's local_endpoint()
};

/// One put, checked: `source` covers [source_offset, +length). length 0 is a bare signal.
struct Put {
  ChannelId channel = 0;
  std::uint64_t sequence = 0;  ///< 1 for the channel's first put
  const memory::Region* source = nullptr;
  std::uint64_t source_offset = 0;
  std::uint64_t remote_offset = 0;
  std::uint32_t length = 0;
  std::uint16_t remote_region = 0;
};

/// Where an inbound put's payload goes.
struct Target {
  const memory::Region* region = nullptr;
  std::uint64_t offset = 0;
};

/// Where the arrival count of an inbound channel is read by its rank.
struct ArrivalWord {
  std::uint64_t* word = nullptr;
  /// What may be registered with a NIC as a whole to reach it: the words of one group.
  std::span<std::byte> words;
};

/// Implemented by the data plane.
class TransportSink {
 public:
  virtual ~TransportSink() = default;
  /// Receiver: checks an announced put (untrusted: it came over a wire) against what is registered. On an
  /// error the transport discards the payload and tells the sender, whose channel fails with that status.
  virtual Status place(ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
                       Target& target) = 0;
  /// Receiver: the first `count` puts are in place; publishes the count to the rank.
  virtual void arrived(ChannelId channel, std::uint64_t count) = 0;
  /// Sender: the sources of the first `count` puts are free.
  virtual void completed(ChannelId channel, std::uint64_t count) = 0;
  /// Either end: the channel cannot go on (refused put, replay impossible). The peer stays up.
  virtual void channel_failed(ChannelId channel, const Status& why) = 0;
  virtual void peer_connected(PeerId peer) = 0;
  /// All paths to the peer are lost for good; its channels are dead.
  virtual void peer_failed(PeerId peer, const Status& why) = 0;

  /// After peer_connected(), for the log and for counters: how this node's puts reach the peer has changed.
  /// `lost` not OK: `path` was up and broke, for that reason, and what it carried waits. OK: puts go over
  /// `path` again, after a loss or because a better one works. `path` names both ends and is valid during
  /// the call. Where a peer has several connections they are one path: lost with the first of them, there
  /// again with the last. Attempts that fail in between are not told, nor what a transport closes on purpose.
  /// The default ignores it.
  virtual void path_changed(PeerId peer, std::string_view path, const Status& lost);

  /// Receiver, transports that publish: where the channel's count goes. Valid until close_channel(). The
  /// default knows of no word.
  virtual Status arrival_word(ChannelId channel, ArrivalWord& place);
  /// Carries a message to the peer's transport of the same rail, whose receive_from_peer() is called with it:
  /// once, in order, or the peer is lost as a whole. For what is rare and small (addresses, keys, fences;
  /// kMaxMessageBytes at most); it goes through both daemons' control threads. The default drops it.
  virtual void send_to_peer(PeerId peer, std::span<const std::byte> message);
};

/// The shape of an emulated link, settable while traffic flows. Probabilities are per put.
struct LinkShape {
  double bandwidth_gbytes = 0;  ///< gigabytes per second, 0 = unlimited
  std::chrono::microseconds latency{0};
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;
  bool down = false;
  std::uint64_t rails_down = 0;  ///< bit r: the wire of rail r is pulled; what it carried takes another one
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const Capabilities& capabilities() const = 0;
  /// Opaque text that peers need to reach this transport; travels over gRPC. Any thread.
  virtual std::string local_endpoint() const = 0;
  /// The version of the messages that this transport gives to send_to_peer(). Daemons compare it when they
  /// greet each other: a peer whose transport speaks another version is refused by name. The default, 0,
  /// belongs to a transport that sends no messages. Any thread.
  virtual std::uint32_t message_version() const;

  /// Says where events go: called once, before any call below. The sink outlives the transport or its
  /// close().
  virtual void attach(TransportSink& sink) = 0;

  /// Starts to connect (one of the two ends dials, by identity); peer_connected or peer_failed follows.
  virtual Status connect(PeerId peer, const PeerAddress& address) = 0;
  /// Closes every path to the peer and forgets it. Its channels must have been closed.
  virtual void disconnect(PeerId peer) = 0;

  /// A message that the peer's transport gave to its send_to_peer(). Untrusted. The default ignores it.
  virtual void receive_from_peer(PeerId peer, std::span<const std::byte> message);

  /// Opens this node's end of a channel. Puts may be submitted before the peer is connected; they wait.
  virtual Status open_outbound(ChannelId channel, PeerId peer, ChannelKey key) = 0;
  virtual Status open_inbound(ChannelId channel, PeerId peer, ChannelKey key) = 0;
  /// The channel is about to be closed: no further put of it begins. An outbound channel sends nothing more
  /// of what submit() took. Of an inbound one, the peer is asked to send nothing more. Puts under way end as
  /// ever, and are reported. A transport whose channels do not disturb each other by closing need not do
  /// anything, as the default does.
  virtual void quiesce(ChannelId channel);
  /// After quiesce(): true when nothing of the channel is under way, so that close_channel() disturbs no
  /// other channel of the peer. It may take as long as the peer's daemon takes to answer: whoever waits has a
  /// limit, and closes then all the same. The default says yes.
  virtual bool quiet(ChannelId channel) const;
  /// Forgets the channel at once: nothing is read from or written to its memory afterwards, nothing reported.
  /// Puts of it that still arrive are discarded.
  virtual void close_channel(ChannelId channel) = 0;

  /// Takes puts in order and returns how many it took; the rest is refused for now (bounded buffers) and must
  /// be submitted again after a poll. Puts of one channel come in sequence order.
  virtual std::size_t submit(std::span<const Put> puts) = 0;
  /// Moves everything that can move without blocking, reports through the sink. Returns the number of events
  /// handled; 0 = nothing to do now.
  virtual std::size_t poll() = 0;
  /// Readable (epoll) when poll() would find work; a sleeping proxy waits on it. Also covers the transport's
  /// timers. Whoever sleeps has polled last, and that poll() returned 0.
  virtual int event_fd() const = 0;

  /// No put is accepted on the region from now on; those under way may go on. A transport whose peers write
  /// by themselves takes their permission back, and says that it holds the region until they have heard. The
  /// default has nothing to take back.
  virtual void retire(const memory::Region& region);
  /// True while a put in progress, outbound or inbound, may still read or write the region. The data plane
  /// keeps an unregistered region mapped until this says no. The default says yes: until the channels close.
  virtual bool holds(const memory::Region& region) const;
  /// The data plane is about to drop its reference: mappings and registrations made of the region go now, and
  /// so does what the peers made of it, as soon as they hear of it. holds() said no, or every channel that
  /// could use it is closed. The default has nothing to give back.
  virtual void forget(const memory::Region& region);

  /// Emulated fabrics only; others answer kUnimplemented, naming themselves.
  virtual Status set_link(PeerId peer, const LinkShape& shape);
  /// Closes every connection; no call into the sink afterwards.
  virtual void close() = 0;
};

/// What every transport is made with.
struct TransportOptions {
  Identity identity;
  std::chrono::milliseconds peer_timeout{10000};     ///< unreachable for longer = peer_failed
  std::chrono::milliseconds reconnect_interval{50};  ///< first retry; doubles up to 1 s
};

}  // namespace mkernel::transport
