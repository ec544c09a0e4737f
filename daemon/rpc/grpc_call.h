// One gRPC call as a stream of PeerMessages, and the way of its events to the control thread.
// NOTES: reactors run on gRPC's threads and never wait for the control thread: what they have to say is
// posted to it, and a cancelled call finishes by itself. So the control thread may block in the destructor
// of the wire until all have ended.
#pragma once

#include <grpcpp/grpcpp.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>

#include "daemon/cluster/peer_wire.h"
#include "mkernel/v1/peer.grpc.pb.h"
#include "proto/base/mutex.h"

namespace mkernel::rpc {

/// The way from gRPC's threads to the control thread. What has been read waits here, so that a busy control
/// thread takes many messages at a time.
class Outlet {
 public:
  explicit Outlet(boost::asio::io_context& io) : io_(io) {}

  // Control thread.
  void set_handler(cluster::StreamHandler handler);
  void clear_handler() { handler_.reset(); }
  /// The next message may be handed on.
  static void want(const std::shared_ptr<Outlet>& self);
  cluster::RemoteEnd remote() const { return remote_; }

  // gRPC's threads.
  static void push(const std::shared_ptr<Outlet>& self, v1::PeerMessage message);
  static void drained(const std::shared_ptr<Outlet>& self);
  /// `call` is let go of on the control thread, not here: gRPC cannot lose its last channel on a thread of
  /// its own.
  static void closed(std::shared_ptr<Outlet> self, Status why, std::shared_ptr<void> call);
  /// Before the first push().
  void set_remote(cluster::RemoteEnd remote) { remote_ = std::move(remote); }

  // Any thread.
  std::size_t waiting();

 private:
  static void post_delivery(const std::shared_ptr<Outlet>& self);
  void deliver();

  boost::asio::io_context& io_;
  std::shared_ptr<cluster::StreamHandler> handler_;  ///< control thread
  bool wanted_ = false;                              ///< control thread
  cluster::RemoteEnd remote_;
  Mutex mutex_;
  std::deque<v1::PeerMessage> inbox_ MK_GUARDED_BY(mutex_);
  bool posted_ MK_GUARDED_BY(mutex_) = false;  ///< a delivery is on its way
};

/// Counts what gRPC still holds.
class Gate {
 public:
  void enter() {
    const MutexLock lock(mutex_);
    ++inside_;
  }
  void leave() {
    const MutexLock lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }
  bool wait_empty(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    const MutexLock lock(mutex_);
    while (inside_ != 0 && empty_.wait_until(mutex_, deadline)) {
    }
    return inside_ == 0;
  }

 private:
  Mutex mutex_;
  ConditionVariable empty_;
  std::size_t inside_ MK_GUARDED_BY(mutex_) = 0;
};

/// One call. Base is the client's or the server's reactor of gRPC; both have the same read and write
/// operations.
template <typename Base>
class Call : public Base {
 public:
  Call(std::shared_ptr<Outlet> outlet, std::shared_ptr<Gate> gate)
      : outlet_(std::move(outlet)), gate_(std::move(gate)) {
    gate_->enter();
  }

  void send(v1::PeerMessage message) {
    const MutexLock lock(mutex_);
    if (ending_) return;
    outbox_.push_back(std::move(message));
    if (outbox_.size() == 1) this->StartWrite(&outbox_.front());
  }
  bool full() {
    const MutexLock lock(mutex_);
    if (outbox_.size() < kFull) return false;
    return was_full_ = true;
  }
  /// Reads until `ahead` messages wait beside the one that is asked for.
  void read(std::size_t ahead) {
    const MutexLock lock(mutex_);
    ahead_ = ahead;
    asked_ = true;
    read_on();
  }
  /// Ends the call after what has been sent.
  void end(const Status& why) {
    {
      const MutexLock lock(mutex_);
      if (std::exchange(ending_, true)) return;
      why_ = why;
      if (!outbox_.empty()) return;  // OnWriteDone() finishes
    }
    finish(why);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return end({});
    if (std::exchange(first_, false)) before_first();
    Outlet::push(outlet_, std::move(inbox_));
    const MutexLock lock(mutex_);
    reading_ = false;
    inbox_ = {};
    // With nothing to be read ahead the next read is the control thread's to ask for; it may have done so.
    if (ahead_ != 0 || asked_) read_on();
  }
  void OnWriteDone(bool ok) override {
    Status why;
    {
      const MutexLock lock(mutex_);
      outbox_.pop_front();
      if (!ok) {
        outbox_.clear();
        ending_ = true;
      }
      if (was_full_ && outbox_.size() <= kDrained) {
        was_full_ = false;
        Outlet::drained(outlet_);
      }
      if (!outbox_.empty()) return this->StartWrite(&outbox_.front());
      if (!ending_) return;
      why = why_;
    }
    finish(why);
  }

 protected:
  /// Called once, with no write under way and without the lock: gRPC may end the call, and all be gone, at
  /// once.
  virtual void finish(const Status& why) = 0;
  /// Before the first message is handed on.
  virtual void before_first() {}
  /// The last thing that happens to a call: gRPC has let go of it. This may be destroyed inside.
  void done(const Status& why, std::shared_ptr<void> self) {
    const std::shared_ptr<Gate> gate = gate_;
    Outlet::closed(outlet_, why, std::move(self));
    gate->leave();
  }

  const std::shared_ptr<Outlet> outlet_;

 private:
  /// Messages that wait to be written: so many hold whoever sends back, and so few let it go on.
  static constexpr std::size_t kFull = 256, kDrained = 64;

  void read_on() MK_REQUIRES(mutex_) {
    if (ending_ || reading_ || outlet_->waiting() > ahead_) return;
    reading_ = true;
    asked_ = false;
    this->StartRead(&inbox_);
  }

  const std::shared_ptr<Gate> gate_;
  bool first_ = true;      ///< gRPC's threads, one at a time
  v1::PeerMessage inbox_;  ///< gRPC's while reading_; no read begins before it was taken
  Mutex mutex_;
  std::deque<v1::PeerMessage> outbox_ MK_GUARDED_BY(mutex_);  ///< the front one is being written
  bool was_full_ MK_GUARDED_BY(mutex_) = false;
  std::size_t ahead_ MK_GUARDED_BY(mutex_) = 0;
  bool asked_ MK_GUARDED_BY(mutex_) = false;  ///< for a message, and no read has begun since
  bool reading_ MK_GUARDED_BY(mutex_) = false;
  bool ending_ MK_GUARDED_BY(mutex_) = false;
  Status why_ MK_GUARDED_BY(mutex_);
};

}  // namespace mkernel::rpc
