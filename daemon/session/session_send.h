// How a session answers; for the files that handle its requests alone.
#pragma once

#include "daemon/session/session.h"

namespace mkernel::session {

template <typename Reply>
void Session::send(const Reply& reply, std::span<const int> fds) {
  if (ending_) return;
  const Status sent = ipc::send_message(socket_.native_handle(), reply, fds);
  if (sent.ok()) return;
  if (sent.code() == StatusCode::kUnavailable) return gone();
  end({StatusCode::kResourceExhausted, describe() + " does not read its replies: " + sent.text()});
}

}  // namespace mkernel::session
