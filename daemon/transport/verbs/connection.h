// The sending end of one connection to a peer: a queue pair, the channels pinned to it, the puts in flight.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/transport/verbs/batch.h"
#include "daemon/transport/verbs/context.h"
#include "daemon/transport/verbs/outbound.h"
#include "daemon/transport/verbs/queue_pair.h"

namespace mkernel::transport::verbs {

/// Proxy thread. States: closed -> opening (Open was sent) -> proving (a write of no bytes is on its way) ->
/// up; closed again by lose(). Channels stay with it, and so does its slot, whatever becomes of its queue
/// pair.
class Connection {
 public:
  Connection(Context& context, PeerId peer, std::uint32_t slot);

  bool closed() const { return state_ == State::kClosed; }
  bool up() const { return state_ == State::kUp; }
  bool answered() const { return state_ != State::kOpening; }
  bool has_qpn(std::uint32_t qpn) const { return queue_.valid() && queue_.qpn() == qpn; }
  Route route() const { return route_; }
  std::uint32_t slot() const { return slot_; }
  Message head(MessageType type) const { return {.type = type, .slot = slot_, .epoch = epoch_}; }
  bool is(const Message& head) const { return head.slot == slot_ && head.epoch == epoch_; }
  Path* path() const { return queue_.valid() ? &queue_.path() : nullptr; }
  /// Both ends by device, port, GID and QPN.
  std::string text() const;

  /// Makes a queue pair on the route and asks the peer for its other half.
  Status open(Route route, std::uint64_t from_boot_id, std::uint64_t to_boot_id);
  /// The peer's half is there: connects, and proves that a write comes back acknowledged.
  Status opened(const Opened& answer);
  /// Destroys the queue pair: nothing of its puts is read from here on. Every channel must attach again.
  void lose();

  void add(Outbound& channel);
  void remove(Outbound& channel);
  const std::vector<Outbound*>& channels() const { return channels_; }

  /// The channel may have puts that it may send.
  void offer(Outbound& channel) {
    if (channel.may_send() && !channel.queued && channel.window.unsent() != nullptr) enqueue(channel);
  }
  /// Something that was being registered is there, or has failed: who waited for it tries again.
  void try_again();
  /// Posts what channels have, in turns, as far as the queue takes it. Not OK: the connection is broken.
  Status flow();
  /// Takes completions. `proved`: the proof was among them. Not OK: the connection is broken.
  struct Progress {
    std::size_t events = 0;
    bool proved = false;
    bool delivered = false;  ///< puts were completed
    /// With `status`: the peer's device refused a write. The route works, but the memory was not there.
    bool refused = false;
    Outbound* culprit = nullptr;  ///< whose write it was
    Status status;
  };
  Progress poll();
  /// Asks for a notification at the next completion. Returns false when one may have come meanwhile.
  bool arm();
  /// Nothing is under way, and nothing can be posted.
  bool idle() const { return posted_count_ == 0 && (state_ != State::kUp || ready_.empty()); }
  /// Tells the peer which regions no put of the channel is on its way to any more.
  void answer_revocations(Outbound& channel);
  /// Tells the peer, when that is so, that no put of the stopped channel is on its way any more. The channel
  /// then waits for the receiver to open its end again.
  void answer_stop(Outbound& channel);
  /// Asks the receiver how many puts of the channel it holds and where its count lies.
  void attach(const Outbound& channel);

 private:
  enum class State { kClosed, kOpening, kProving, kUp };
  /// What one signalled request completes.
  struct Posted {
    Outbound* channel = nullptr;  ///< null: the proof
    std::uint64_t count = 0;      ///< of the channel's puts
    std::uint32_t requests = 0;
  };

  enum class Added { kYes, kFull, kWait, kFailed };
  void enqueue(Outbound& channel);
  Added add_put(Outbound& channel, const Put& put);
  const RemoteRegion* remote_region(Outbound& channel, const Put& put);
  /// Null: it is being registered, or the channel has failed.
  const rdma::Registration* source_of(Outbound& channel, const memory::Region& region);
  // The rare paths of a put, kept out of the functions that every put runs through.
  [[gnu::cold]] const rdma::Registration* look_up(Outbound& channel, const memory::Region& region);
  [[gnu::cold]] void ask_for(Outbound& channel, std::uint32_t index);
  [[gnu::cold]] void refuse(Outbound& channel, const Put& put);
  Status serve(Outbound& channel, bool& full);
  Status post(Outbound* channel, std::uint64_t count);
  /// Where the entry `ahead` of the first lies in the ring, at most one lap on.
  std::uint32_t posted_at(std::uint32_t ahead) const {
    const std::uint32_t at = posted_first_ + ahead;
    return at < posted_.size() ? at : at - static_cast<std::uint32_t>(posted_.size());
  }
  void complete(const Posted& done);
  Status explain(const ibv_wc& completion) const;

  Context& context_;
  const PeerId peer_;
  const std::uint32_t slot_;
  std::uint32_t epoch_ = 0;
  State state_ = State::kClosed;
  Route route_{};
  Port remote_port_{};
  std::uint32_t remote_qpn_ = 0;
  bool armed_ = false;

  rdma::Object<ibv_cq> cq_;  ///< before queue_: destroyed after it
  QueuePair queue_;
  std::uint64_t piece_bytes_ = 0;  ///< most that one request carries
  std::uint32_t credits_ = 0;      ///< requests that the queue has room for
  std::uint64_t count_ = 0;        ///< read by the device when the count is posted: inline
  Batch batch_;
  std::vector<Posted> posted_;  ///< ring
  std::uint32_t posted_first_ = 0;
  std::uint32_t posted_count_ = 0;

  std::vector<Outbound*> channels_;
  std::vector<Outbound*> ready_;  ///< room for all of channels_
  bool source_pending_ = false;   ///< some channel waits for its source
};

/// Fails the channel, once, and tells the data plane.
void fail_channel(Context& context, Outbound& channel, const Status& why);

}  // namespace mkernel::transport::verbs
