// The inbound half of a link: copies announced puts into place, publishes prefixes, acknowledges.
#pragma once

#include <bitset>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/transport/emulated/context.h"
#include "daemon/transport/emulated/message.h"
#include "daemon/transport/window/receive_window.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::emulated {

/// Outlives connections. Everything that comes in is checked here: a put that must not be done fails its
/// channel, a packet that breaks the protocol is an error of the link. One thread.
///
/// The CPU copies a put piece by piece while it is the batch's next one; a copy engine is handed the whole
/// put, which then is a flight until the engine is through with it, and the batch goes on. A put whose bytes
/// are in place before the wire would have brought them is early: it counts when its time has come.
class Receiver {
 public:
  Receiver(Context& context, std::string peer) : context_(context), peer_(std::move(peer)) {}

  Status open(ChannelId channel, ChannelKey key);
  /// Nothing of the channel lands after this: waits for the engines where they copy a put of it.
  void close(ChannelId channel);

  /// A connection is there; `fence` is the peer's page. Every channel tells the peer where to resume, once
  /// the engines are through with what the last connection brought.
  void connected(int socket, ipc::Mapping fence);
  /// Fences the old path: nothing of it counts after this.
  void lost();

  Status on_announce(const AnnouncePacket& packet, const ipc::UniqueFd& fd);
  void on_withdraw(const WithdrawPacket& packet) { sources_.erase(packet.region); }
  /// Takes a batch; process() does it. Only when !busy().
  void on_puts(const PutsPacket& packet);

  /// True while a put that is half copied, or that an engine copies, writes to the region.
  bool writes(const memory::Region& region) const;

  /// A batch is being copied; the next packet has to wait.
  bool busy() const { return next_ < batch_.head.count; }
  /// Engines are at work for this link: collect() will find something.
  bool copying() const { return !flights_.empty(); }
  /// When the next early put counts: collect() will find it.
  std::optional<Time> next_arrival() const;
  /// Takes note of what the engines are through with and of what arrives by now, publishes. Returns the
  /// number of puts finished.
  std::size_t collect(Time now);
  /// Copies up to `budget` bytes (lowered by what was copied) and starts the engines, publishes. Returns the
  /// number of puts that are done with or handed to an engine.
  std::size_t process(std::uint64_t& budget, Time now);
  /// Sends what the peer has to know. Errors: kResourceExhausted when the socket is full, kUnavailable when
  /// it is gone.
  Status flush();

 private:
  struct Channel {
    ChannelId id = 0;
    ReceiveWindow window{kWindow};
    std::bitset<kWindow> flying;  ///< puts that are flights or early, by number modulo kWindow
    std::uint64_t published = 0;
    Status failure;        ///< not OK: told to the peer on every connection, puts are discarded
    bool held_due = true;  ///< the peer has to be told where to go on, or that the channel has failed
    bool ack_due = false;
    bool dirty = false;  ///< in dirty_
  };
  /// A put that will count, once its bytes are in place and its time has come.
  struct Arrival {
    ChannelKey channel = 0;
    std::uint64_t number = 0;
    std::uint64_t fence = 0;  ///< of its batch
    Time at;
  };
  /// A put that an engine copies.
  struct Flight {
    Arrival arrival;
    std::uint64_t bytes = 0;
    const memory::Region* target = nullptr;
    std::shared_ptr<ImportedRegion> source;
    memory::CopyTicket ticket;
    bool abandoned = false;  ///< its connection is gone: it still lands, and does not count
  };

  Channel* find_key(ChannelKey key);
  Status place(Channel& channel, const PutEntry& put);
  /// Checks the put at next_; false = it is not to be done (again).
  bool begin(Channel& channel, const PutEntry& put);
  /// Goes on with the put at next_; true = done with it, whatever became of it.
  bool step(std::uint64_t& budget, Time now);
  /// Of the put at next_.
  Arrival arrival() const;
  void take_off(Channel& channel, const memory::CopyTicket& ticket);
  void land(const Flight& flight, const Status& engines, Time now);
  /// The put's bytes are in place: it counts, or is early.
  void arrive(Channel& channel, const Arrival& put, Time now);
  /// It counts, unless its sender has closed a channel since.
  void accept(Channel& channel, const Arrival& put);
  void refuse(Channel& channel, ChannelKey key, std::uint64_t number, const Status& why);
  /// Nothing of the channel is on its way any more: waits for its flights, forgets what is early.
  void wait_for_arrivals_of(ChannelKey key);
  bool full() const;
  void restart();
  void mark(Channel& channel, ChannelKey key);
  void publish();
  Status send_nack(ChannelKey key, const Channel& channel);
  Status send_counts(PacketType type, bool Channel::*due);

  Context& context_;
  std::string peer_;
  int socket_ = -1;
  ipc::Mapping fence_;
  std::unordered_map<ChannelKey, std::unique_ptr<Channel>> channels_;
  std::unordered_map<ChannelId, ChannelKey> key_of_;
  std::unordered_map<std::uint64_t, std::shared_ptr<ImportedRegion>> sources_;
  PutsPacket batch_{};
  std::uint32_t next_ = 0;      ///< put of the batch that is being done
  bool begun_ = false;          ///< it was checked and has its target
  std::uint64_t sequence_ = 0;  ///< its whole sequence
  std::uint64_t copied_ = 0;    ///< bytes of it in place
  Target target_;
  std::vector<Flight> flights_;
  std::deque<Arrival> early_;  ///< in the order of their times
  std::uint64_t flying_bytes_ = 0;
  std::size_t abandoned_ = 0;      ///< flights
  std::vector<ChannelKey> dirty_;  ///< channels with something to publish or to say
};

}  // namespace mkernel::transport::emulated
