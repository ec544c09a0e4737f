// One port of one device, opened: what queue pairs on it are made of, and what the device reports about it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/transport/rdma/objects.h"
#include "daemon/transport/rdma/registrations.h"
#include "daemon/transport/verbs/message.h"
#include "daemon/transport/verbs/verbs.h"

namespace mkernel::transport::verbs {

/// Proxy thread.
class Path {
 public:
  /// The options outlive the path.
  /// `registrar`: where large regions are registered; null: on the caller's thread.
  static Result<std::unique_ptr<Path>> open(const VerbsOptions& options, const VerbsPort& port,
                                            rdma::Registrar* registrar = nullptr);

  /// OK, or why nothing goes over it: the port is down, the device is dead.
  const Status& state() const { return state_; }
  const Port& port() const { return port_; }
  std::uint8_t gid_index() const { return static_cast<std::uint8_t>(choice_.gid_index); }
  std::string text() const { return text_of(port_); }
  std::uint64_t max_message_bytes() const { return max_message_bytes_; }

  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_.get(); }
  ibv_comp_channel* completions() const { return channel_.get(); }
  /// For queue pairs that only receive writes: nothing ever completes there.
  ibv_cq* quiet_cq() const { return quiet_cq_.get(); }
  rdma::Registrations& registrations() { return *registrations_; }

  /// What the asynchronous events that wait mean for the queue pairs.
  struct News {
    struct BrokenQueue {
      std::uint32_t qpn = 0;
      bool write_refused = false;  ///< for a write of the peer's into memory that it may not write to
    };
    bool changed = false;             ///< state or address: look at state() again
    std::vector<BrokenQueue> broken;  ///< queue pairs that are in error
  };
  News take_events();

 private:
  Path(const VerbsOptions& options, VerbsPort choice) : options_(options), choice_(std::move(choice)) {}
  Status open_device();
  Status make_objects(rdma::Registrar* registrar);
  /// Reads the port again, chooses its GID again. Returns whether anything is different.
  bool look();
  Status look_at_port();

  const VerbsOptions& options_;
  VerbsPort choice_;
  Port port_{};
  Status state_;
  std::uint64_t max_message_bytes_ = 0;
  bool device_dead_ = false;
  rdma::Object<ibv_context> context_;
  std::shared_ptr<ibv_pd> pd_;
  rdma::Object<ibv_comp_channel> channel_;
  rdma::Object<ibv_cq> quiet_cq_;
  std::unique_ptr<rdma::Registrations> registrations_;
};

}  // namespace mkernel::transport::verbs
