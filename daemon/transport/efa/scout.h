// Whether a better route than the connection's works again: a queue pair at either end that carries no
// channel, and one write of no bytes between them.
#pragma once

#include <memory>

#include "daemon/transport/efa/context.h"
#include "daemon/transport/efa/queue.h"

namespace mkernel::transport::efa {

/// Proxy thread. One try at a time. The end that dials sends it out; the other one only makes its half.
class Scout {
 public:
  Scout(Context& context, PeerId peer, std::uint64_t remote_boot_id);

  // The end that dials.
  bool out() const { return out_; }
  Route route() const { return route_; }
  void send(Route route, Time now);
  /// The write has come back; or not yet; or why it never will.
  Result<bool> poll(Time now);
  Time deadline() const { return out_ ? due_ : kNever; }
  void on_tried(const Hello& message);

  // The end that answers.
  void on_try(const Hello& message);
  void on_over(const Message& message);

  // Either.
  void on_lost(const Refusal& message);
  /// It has a queue pair on the device at this position.
  bool uses(std::uint32_t local) const { return queue_ != nullptr && route_.local == local; }
  /// The queue pair goes, and the other end is told.
  void end();
  bool arm();
  /// Nothing of it is under way, and poll() would not end it.
  bool idle() const { return (!out_ || lost_.ok()) && (queue_ == nullptr || queue_->idle()); }
  /// Says nothing.
  void close();

 private:
  Message head(MessageType type) const { return {.type = type, .epoch = number_}; }
  Status make_queue();
  Hello hello(MessageType type) const;

  Context& context_;
  const PeerId peer_;
  const std::uint64_t remote_boot_id_;
  std::uint32_t number_ = 0;  ///< of the try
  Route route_{};             ///< at the end that answers only `local` is known
  bool out_ = false;
  Time due_ = kNever;
  Status lost_;
  std::unique_ptr<Queue> queue_;
};

}  // namespace mkernel::transport::efa
