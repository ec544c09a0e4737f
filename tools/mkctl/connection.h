// The way to a daemon's control service.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "mkernel/v1/control.pb.h"
#include "proto/abi/status.h"

namespace mkernel::mkctl {

using Reply = Result<nlohmann::ordered_json>;

/// Each call asks the daemon and returns its reply, a message of control.proto, as JSON. Errors: kUnavailable
/// when no daemon is met at the socket within `patience`, or none answers within 10 s after that (a list:
/// within 120 s), with the socket and what was found there; kUnimplemented when who answers does not know the
/// request; else what the daemon says. One thread. Nothing is sent before the first call.
class Connection {
 public:
  /// A daemon that runs answers at once, also when its control thread is busy.
  static constexpr std::chrono::milliseconds kPatience{2000};

  explicit Connection(const std::string& socket, std::chrono::milliseconds patience = kPatience);
  ~Connection();

  const std::string& socket() const { return socket_; }

  Reply status();
  Reply sessions();
  Reply users();
  Reply peers();
  Reply groups();
  Reply regions();
  Reply channels(bool all);
  Reply devices();
  Reply topology();
  Reply config();
  Reply set_link(const v1::LinkRequest& request);
  Reply reload();

 private:
  struct Wire;

  const std::string socket_;
  const std::unique_ptr<Wire> wire_;
};

}  // namespace mkernel::mkctl
