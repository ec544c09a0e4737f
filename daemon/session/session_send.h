// How a session answers; for the files that handle its requests alone.
#pragma once

#include "daemon/session/session.h"

namespace mkernel::session {

template <typename Reply>
void Session::send(const Reply& reply) {
  if (ending_ || hanging_up_) return;
  if (const Status sent = ipc::send_message(socket_.native_handle(), reply); !sent.ok()) unsent(sent);
}

template <typename Reply>
Status Session::send_with_fds(const Reply& reply, std::span<const int> fds) {
  if (fds.empty() || ending_ || hanging_up_) {
    send(reply);
    return {};
  }
  settle_in_flight();
  auto charge = services_.accounts.take(account_, {{Resource::kFds, fds.size()}});
  if (!charge.ok()) return charge.status();
  const Status sent = ipc::send_message(socket_.native_handle(), reply, fds);
  if (sent.code() == StatusCode::kAborted) {
    return {StatusCode::kResourceExhausted,
            "node " + services_.node_name + " has too many fds under way to clients: " + sent.text()};
  }
  if (!sent.ok()) {
    unsent(sent);
    return {};
  }
  in_flight_.push_back(std::move(charge).value());
  if (in_flight_.size() == 1) watch_in_flight();
  return {};
}

}  // namespace mkernel::session
