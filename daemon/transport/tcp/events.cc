#include "daemon/transport/tcp/events.h"

#include <utility>

namespace mkernel::transport::tcp {

void Events::forget(Outbound& channel) {
  completed_.remove(channel);
  std::erase_if(states_, [&](const State& state) {
    return state.kind == State::kChannelFailed && state.id == channel.id;
  });
}

void Events::forget_peer(PeerId peer) {
  std::erase_if(states_,
                [&](const State& state) { return state.kind != State::kChannelFailed && state.id == peer; });
}

void Events::clear() {
  while (arrived_.pop() != nullptr) continue;
  while (completed_.pop() != nullptr) continue;
  states_.clear();
}

std::size_t Events::deliver(TransportSink& sink) {
  std::size_t calls = 0;
  while (!empty()) {
    while (Inbound* channel = arrived_.pop()) {
      sink.arrived(channel->id, channel->window.prefix());
      ++calls;
    }
    while (Outbound* channel = completed_.pop()) {
      sink.completed(channel->id, channel->window.acknowledged());
      ++calls;
    }
    if (states_.empty()) continue;
    const State state = std::move(states_.front());
    states_.pop_front();
    ++calls;
    switch (state.kind) {
      case State::kPeerConnected: sink.peer_connected(state.id); break;
      case State::kPeerFailed: sink.peer_failed(state.id, state.why); break;
      case State::kPathChanged: sink.path_changed(state.id, state.path, state.why); break;
      case State::kMessage: sink.send_to_peer(state.id, state.message); break;
      case State::kChannelFailed: sink.channel_failed(state.id, state.why); break;
    }
  }
  return calls;
}

}  // namespace mkernel::transport::tcp
