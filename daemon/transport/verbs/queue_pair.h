// One reliable connection's end: made, connected, destroyed.
#pragma once

#include <cstdint>

#include "daemon/transport/verbs/path.h"

namespace mkernel::transport::verbs {

/// The other end's half of what a connection needs.
struct RemoteQueue {
  Port port{};
  std::uint32_t qpn = 0;
  std::uint32_t psn = 0;  ///< of its first packet
};

/// Proxy thread. Destroyed or broken, nothing is read or written through it any more.
class QueuePair {
 public:
  QueuePair() = default;

  /// In state INIT. `send_cq` null: it only takes the peer's writes. Otherwise it only writes, from a queue
  /// of options.send_queue requests.
  static Result<QueuePair> make(const VerbsOptions& options, Path& path, ibv_cq* send_cq, std::uint32_t psn);
  /// To RTR, and to RTS where it writes.
  Status connect(const RemoteQueue& remote);

  bool valid() const { return qp_ != nullptr; }
  void destroy() { qp_.reset(); }
  ibv_qp* get() const { return qp_.get(); }
  std::uint32_t qpn() const { return qp_->qp_num; }
  std::uint32_t psn() const { return psn_; }
  std::uint32_t inline_bytes() const { return inline_bytes_; }
  Path& path() const { return *path_; }

 private:
  Status init();
  Status ready_to_receive(const RemoteQueue& remote);
  Status ready_to_send();
  Status modify(ibv_qp_attr& attributes, int mask, const char* state);

  const VerbsOptions* options_ = nullptr;
  Path* path_ = nullptr;
  bool writes_ = false;
  std::uint32_t psn_ = 0;
  std::uint32_t inline_bytes_ = 0;
  rdma::Object<ibv_qp> qp_;
};

}  // namespace mkernel::transport::verbs
