// One EFA device, opened and found able.
#pragma once

#include <memory>
#include <string>

#include "daemon/transport/efa/efa.h"
#include "daemon/transport/rdma/objects.h"

namespace mkernel::transport::efa {

/// What the device and its software can, as far as it changes what is done.
struct Abilities {
  bool unsolicited = false;  ///< writes with immediate data need no receives posted
  bool dma_buf = false;
  std::uint32_t send_queue = 0;  ///< requests, as they are made here
  std::uint32_t receive_queue = 0;
  std::uint32_t inline_bytes = 0;  ///< payload inside the request; 0: none
  std::uint32_t max_put_bytes = 0;
  std::uint32_t max_cqe = 0;
};

/// Proxy thread. Everything made of it goes first.
class Device {
 public:
  static Result<std::unique_ptr<Device>> open(const EfaOptions& options);

  const rdma::VerbsLibrary& verbs() const { return verbs_; }
  const rdma::EfaLibrary& efa() const { return efa_; }
  const Abilities& abilities() const { return abilities_; }
  const std::string& name() const { return name_; }
  const ibv_gid& gid() const { return gid_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_.get(); }
  ibv_comp_channel* completions() const { return channel_.get(); }

  /// Takes the notifications of completions that wait.
  void take_notifications();
  /// Takes the asynchronous events that wait. OK, or why nothing sent before now can be relied on; `dead`:
  /// nor anything later.
  Status take_events(bool& dead);

 private:
  explicit Device(const EfaOptions& options) : verbs_(options.verbs), efa_(options.efa) {}
  Status open_device(const std::string& wanted);
  Status ask_abilities(const EfaOptions& options);
  /// Requests in a send queue, with payloads of `inline_bytes` inside them; negative: -errno.
  int depth_with(std::uint32_t inline_bytes) const;
  Status make_objects();

  const rdma::VerbsLibrary verbs_;
  const rdma::EfaLibrary efa_;
  std::string name_;
  Abilities abilities_;
  ibv_gid gid_{};
  rdma::Object<ibv_context> context_;
  rdma::Object<ibv_pd> pd_;
  rdma::Object<ibv_comp_channel> channel_;
};

}  // namespace mkernel::transport::efa
