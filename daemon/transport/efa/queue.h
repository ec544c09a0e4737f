// One end of a connection: a completion queue and a queue pair of its own, and the address of the other end.
// What goes with it goes at once: nothing lands from the old path, nothing is read for it, once it is
// destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "daemon/transport/efa/device.h"
#include "daemon/transport/efa/immediate.h"

namespace mkernel::transport::efa {

/// A write, or with length 0 only its immediate data.
struct Request {
  std::uint64_t id = 0;  ///< of its completion
  Immediate immediate;
  std::uint64_t source = 0;      ///< as the device knows it
  std::byte* inlined = nullptr;  ///< the payload, where it goes inside the request
  std::uint64_t target = 0;
  std::uint32_t length = 0;
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
};

/// Proxy thread.
class Queue {
 public:
  struct Shape {
    PeerId peer = 0;           ///< who is notified of
    std::uint32_t credit = 1;  ///< puts that the peer may have on their way to here
    std::uint32_t window = 1;  ///< and of one channel
    std::uint8_t service_level = 0;
    std::uint32_t qkey = 0;  ///< what the peer's requests must carry
  };
  /// `pd`: what the peer may write to is registered there.
  static Result<std::unique_ptr<Queue>> make(Device& device, std::shared_ptr<ibv_pd> pd, const Shape& shape);

  const Device& device() const { return device_; }
  const std::shared_ptr<ibv_pd>& pd() const { return pd_; }
  /// For the other end: what it needs to reach this one. `path`: of the other end, by its own order.
  Hello hello(const Message& head, std::uint64_t from_boot_id, std::uint64_t to_boot_id,
              std::uint32_t path) const;
  /// Where requests go from now on.
  Status meet(const Hello& peer);
  bool met() const { return address_ != nullptr; }

  /// Requests that can be posted now.
  std::uint32_t room() const { return depth_ - held_; }
  std::uint32_t depth() const { return depth_; }
  /// Posts as many as there is room for, in one doorbell. The number taken, or why the queue is useless.
  Result<std::size_t> post(std::span<const Request> requests);
  /// Completions of requests and what has arrived, at most `out.size()`.
  Result<std::size_t> poll(std::span<ibv_wc> out);
  /// The next completion is notified. False when it was not before, and some may have come meanwhile.
  bool arm();
  /// Nothing that was posted is under way.
  bool idle() const { return held_ == 0; }

 private:
  Queue(Device& device, std::shared_ptr<ibv_pd> pd, const Shape& shape)
      : device_(device), pd_(std::move(pd)), shape_(shape) {}
  Status make_pair();
  Status ready();
  Status post_receives(std::uint32_t count);

  Device& device_;
  const std::shared_ptr<ibv_pd> pd_;
  const Shape shape_;
  std::uint32_t depth_ = 0;
  std::uint32_t held_ = 0;  ///< requests that were posted and not polled
  bool armed_ = false;
  std::uint32_t peer_qpn_ = 0, peer_qkey_ = 0;
  rdma::Object<ibv_cq> cq_;
  rdma::Object<ibv_qp> qp_;
  rdma::Object<ibv_ah> address_;
  ibv_qp_ex* requests_ = nullptr;
};

}  // namespace mkernel::transport::efa
