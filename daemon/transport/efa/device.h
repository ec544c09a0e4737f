// One EFA device, opened and found able.
#pragma once

#include <memory>
#include <string>

#include "daemon/transport/efa/efa.h"
#include "daemon/transport/efa/message.h"
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
  /// `name`: empty for the first EFA of the machine.
  static Result<std::unique_ptr<Device>> open(const EfaOptions& options, const std::string& name);

  /// OK, or why nothing goes over it: the port is down, the device is dead.
  const Status& state() const { return state_; }
  /// It never comes back.
  bool dead() const { return dead_; }

  const rdma::VerbsLibrary& verbs() const { return verbs_; }
  const rdma::EfaLibrary& efa() const { return efa_; }
  const Abilities& abilities() const { return abilities_; }
  const std::string& name() const { return name_; }
  /// What peers must know of it, and its name; nothing about a queue pair.
  Hello hello() const;
  ibv_context* context() const { return context_.get(); }
  /// For what belongs to no peer: nothing is registered there, so that nothing is reached over its queue
  /// pairs.
  const std::shared_ptr<ibv_pd>& pd() const { return pd_; }
  ibv_comp_channel* completions() const { return channel_.get(); }

  /// What the asynchronous events that wait mean.
  struct News {
    bool changed = false;  ///< port or address: look at state() again
    Status lost;           ///< why nothing sent before now can be relied on
  };
  News take_events();

 private:
  explicit Device(const EfaOptions& options) : verbs_(options.verbs), efa_(options.efa) {}
  Status open_device(const std::string& wanted);
  Status ask_abilities(const EfaOptions& options);
  /// Requests in a send queue, with payloads of `inline_bytes` inside them; negative: -errno.
  int depth_with(std::uint32_t inline_bytes) const;
  Status make_objects();
  /// Reads state and address of the port again.
  Status look_at_port();

  const rdma::VerbsLibrary verbs_;
  const rdma::EfaLibrary efa_;
  std::string name_;
  Status state_;
  bool dead_ = false;
  Abilities abilities_;
  ibv_gid gid_{};
  rdma::Object<ibv_context> context_;
  std::shared_ptr<ibv_pd> pd_;
  rdma::Object<ibv_comp_channel> channel_;
};

}  // namespace mkernel::transport::efa
