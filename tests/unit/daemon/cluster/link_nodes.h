// Nodes and scripted peers over real gRPC on loopback. All nodes of a test live on one io_context, so the
// test decides who gets to run.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cluster/peer_hello.h"
#include "daemon/cluster/peer_links.h"
#include "daemon/rpc/grpc_wire.h"
#include "proto/abi/version.h"
#include "tests/support/text.h"

namespace mkernel::cluster {

using std::chrono::milliseconds;
using test::contains;

/// Generous: sanitizers and a busy machine. No test asserts a time.
inline constexpr std::chrono::seconds kPatience{60};

/// Runs until the condition holds; false when it never does.
inline bool run_until(boost::asio::io_context& io, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    io.restart();
    io.run_one_for(milliseconds(20));
  }
  return true;
}

struct Node : PeerEvents {
  Node(boost::asio::io_context& context, const std::string& name, std::uint64_t boot_id,
       std::vector<std::string> peers = {}, const std::string& listen = "127.0.0.1:0",
       double time_scale = 0.05)
      : io(context) {
    options.node = name;
    options.boot_id = boot_id;
    options.software_version = "1.2.3";
    options.listen = listen;
    options.peers = std::move(peers);
    options.time_scale = time_scale;
    options.open =
        true;  // most tests are about what comes after; peer_admission_test.cc is about who may come in
    options.transport = "tcp";
    options.endpoints = {name + ":1", name + ":2"};
  }
  Status start() {
    auto wire = rpc::make_grpc_wire(io, tls, options.patience(), options.listen);
    if (!wire.ok()) return wire.status();
    options.certified = tls.enabled();
    auto started = PeerLinks::start(io, options, *this, std::move(wire).value());
    if (!started.ok()) return started.status();
    links = std::move(started).value();
    return {};
  }
  void stop() { links.reset(); }

  void peer_up(const PeerInfo& peer) override { up[peer.id] = peer; }
  void peer_down(transport::PeerId peer, const Status& why) override {
    REQUIRE(up.erase(peer) == 1);
    down.push_back(why.text());
  }
  void received(transport::PeerId peer, const v1::PeerMessage& message) override {
    REQUIRE(up.count(peer) == 1);
    rounds[up[peer].node].push_back(message.contribution().round());
  }

  transport::PeerId id_of(const std::string& node) const {
    for (const auto& [id, info] : up) {
      if (info.node == node) return id;
    }
    return 0;
  }
  void say(const std::string& node, std::uint64_t round) {
    v1::PeerMessage message;
    message.mutable_contribution()->set_round(round);
    links->send(id_of(node), message);
  }
  std::string state_of(const std::string& node) const {
    for (const PeerSnapshot& peer : links->peers()) {
      if (peer.node == node) return peer.state;
    }
    return "";
  }

  boost::asio::io_context& io;
  PeerLinksOptions options;
  rpc::TlsFiles tls;
  std::unique_ptr<PeerLinks> links;
  std::map<transport::PeerId, PeerInfo> up;
  std::vector<std::string> down;
  std::map<std::string, std::vector<std::uint64_t>> rounds;
};

/// A peer that says what the test wants, on the streams that the test opens.
struct Script {
  Script(boost::asio::io_context& io, const std::string& name, std::uint64_t boot)
      : node(name), boot_id(boot) {
    auto made = rpc::make_grpc_wire(io, {}, milliseconds(5000), "127.0.0.1:0");
    REQUIRE(made.ok());
    wire = std::move(made).value();
    auto listening = wire->listen("127.0.0.1:0", [this](std::shared_ptr<PeerStream> stream) {
      accepted.push_back(stream);
      // Answers every hello as a peer of epoch 1 that has taken nothing, and reads on.
      stream->start({[this, stream = stream.get()](const v1::PeerMessage& message) {
                       if (message.has_hello()) {
                         token = message.hello().token();
                         stream->send(hello(true));
                       }
                       heard.push_back(message);
                       stream->read();
                     },
                     [](const Status&) {}});
      stream->read();
    });
    REQUIRE(listening.ok());
    address = listening.value();
  }
  v1::PeerMessage hello(bool answer) const {
    v1::PeerMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_node(node);
    hello.set_boot_id(boot_id);
    hello.set_abi_version(abi::kVersion);
    hello.set_groups_version(kGroupsVersion);
    hello.set_address(address);
    for (const std::string& rail : {node + ":1", node + ":2"}) {
      hello.add_endpoints()->set_kind("tcp");
      hello.mutable_endpoints(hello.endpoints_size() - 1)->set_address(rail);
    }
    if (answer) {
      hello.set_epoch(epoch);
    } else {
      hello.set_token("of " + node);
    }
    return message;
  }
  void dial(const std::string& where) {
    out = wire->dial(where);
    out->start({[this](const v1::PeerMessage& message) {
                  answers.push_back(message);
                  out->read();
                },
                [this](const Status& why) { closed = why; }});
    out->read();
  }
  /// Dials, and says a hello, changed so.
  void knock(const std::string& where, const std::function<void(v1::Hello&)>& change = {}) {
    closed.reset();
    answers.clear();
    dial(where);
    v1::PeerMessage message = hello(false);
    if (change) change(*message.mutable_hello());
    out->send(message);
  }
  void start() {
    v1::PeerMessage message;
    message.mutable_start()->set_epoch(epoch);
    message.mutable_start()->add_tokens(token);
    out->send(message);
  }
  void say(std::uint64_t sequence) {
    v1::PeerMessage message;
    message.set_sequence(sequence);
    message.mutable_contribution()->set_round(sequence);
    out->send(message);
  }

  std::string node, address, token;  ///< the token of whoever has dialled it last
  std::uint64_t boot_id, epoch = 1;
  std::unique_ptr<PeerWire> wire;
  std::vector<std::shared_ptr<PeerStream>> accepted;
  std::shared_ptr<PeerStream> out;
  std::deque<v1::PeerMessage> heard, answers;
  std::optional<Status> closed;
};

inline bool linked(const std::vector<Node*>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](const Node* node) { return node->up.size() + 1 == nodes.size(); });
}

/// A script whose link to `node` is up in both directions.
inline void link(boost::asio::io_context& io, Script& script, Node& node) {
  script.knock(node.links->address());
  REQUIRE(run_until(io, [&] { return !script.answers.empty(); }));
  REQUIRE(run_until(io, [&] { return !script.token.empty(); }));
  script.epoch = script.answers.front().hello().epoch();
  script.start();
  REQUIRE(run_until(io, [&] { return node.id_of(script.node) != 0; }));
}

/// Why `node` closes a stream that begins with the script's hello, changed so. It answers nothing before.
inline Status refusal(boost::asio::io_context& io, Script& script, const Node& node,
                      const std::function<void(v1::Hello&)>& change = {}) {
  script.knock(node.links->address(), change);
  REQUIRE(run_until(io, [&] { return script.closed.has_value(); }));
  CHECK(script.answers.empty());
  return *script.closed;
}

/// The same of a node b that comes for the first time.
inline std::string refusal(boost::asio::io_context& io, const Node& node,
                           const std::function<void(v1::Hello&)>& change) {
  Script b(io, "b", 2);
  return refusal(io, b, node, change).to_string();
}

}  // namespace mkernel::cluster
