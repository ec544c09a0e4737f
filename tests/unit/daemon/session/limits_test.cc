// What a session and its user may make the daemon hold: refused by name above the limit, given back when it
// is gone, and nobody else's loss.
#include <fcntl.h>
#include <sys/resource.h>

#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

using abi::MessageType;

ipc::UniqueFd sealed(std::uint64_t bytes) {
  return std::move(ipc::create_shared_memory("region", bytes)).value();
}

Status said(const abi::ReplyStatus& reply) {
  return ipc::from_reply(reply);
}

/// A client that has said hello.
std::unique_ptr<RawClient> client_of(Harness& harness) {
  auto client = std::make_unique<RawClient>(harness.socket());
  REQUIRE(client->hello().status.code == 0);
  return client;
}

std::string uid_text() {
  return "user " + std::to_string(::getuid());
}

TEST_CASE("a session's regions, fds and bytes are refused above its limits, and free again afterwards") {
  Harness harness([](ServerOptions& options) { options.limits.max_regions = 2; });
  const auto client = client_of(harness);
  REQUIRE(client->join("g", 1, 0).status.code == 0);
  const ipc::UniqueFd fd = sealed(4096);
  REQUIRE(client->register_region(fd.get(), 0, 0, 4096, false, abi::RegionKind::kHostMemory, true).ok());
  REQUIRE(client->register_region(fd.get(), 1, 0, 4096).ok());
  const Status third = client->register_region(fd.get(), 2, 0, 4096);
  CHECK(third.code() == StatusCode::kResourceExhausted);
  CHECK(third.text() ==
        "register_region: 1 regions on top of 2 of this session are above limits.max_regions = 2");
  REQUIRE(client->leave().ok());
  REQUIRE(client->join("g", 1, 0).status.code == 0);
  CHECK(client->register_region(fd.get(), 0, 0, 4096).ok());  // of a memfd that the session keeps
}

TEST_CASE("what a user holds counts over all his sessions and names the table that limits it") {
  Harness harness([](ServerOptions& options) {
    config::UserEntry entry;
    entry.id = ::getuid();
    entry.limits.max_regions = 3;
    entry.lines["max_regions"] = 1;
    options.users.named["me"] = entry;
    options.users.standard.max_regions = 1;
  });
  const auto a = client_of(harness), b = client_of(harness);
  REQUIRE(a->join("a", 1, 0).status.code == 0);
  REQUIRE(b->join("b", 1, 0).status.code == 0);
  const ipc::UniqueFd fd = sealed(4096);
  REQUIRE(a->register_region(fd.get(), 0, 0, 4096).ok());
  REQUIRE(a->register_region(fd.get(), 1, 0, 4096).ok());
  REQUIRE(b->register_region(fd.get(), 0, 0, 4096).ok());
  CHECK(b->register_region(fd.get(), 1, 0, 4096).text() ==
        "register_region: 1 regions on top of 3 of " + uid_text() + " are above users.me.max_regions = 3");
  a->close();
  REQUIRE(eventually([&] { return harness.session_count() == 1; }));
  CHECK(b->register_region(fd.get(), 1, 0, 4096).ok());
}

TEST_CASE("fds are counted for sessions, regions and the whole node, and a reserve stays") {
  Harness harness([](ServerOptions& options) {
    options.limits.max_fds = 6;
    options.budget = NodeBudget::of_this_process();
    options.budget->fds = 11;
    options.budget->fd_limit = 100;
  });
  // The fd of a request that was refused counts until it is closed.
  const auto settled = [&](std::uint64_t fds) {
    return eventually(
        [&] { return harness.control([](SessionServer& server) { return server.node_use().fds; }) == fds; });
  };
  const auto a = client_of(harness);  // socket, pidfd, one doorbell
  REQUIRE(a->join("a", 1, 0).status.code == 0);
  const ipc::UniqueFd fd = sealed(4096);
  REQUIRE(a->register_region(fd.get(), 0, 0, 4096).ok());
  REQUIRE(a->register_region(fd.get(), 1, 0, 4096).ok());
  REQUIRE(a->register_region(fd.get(), 2, 0, 4096).ok());
  CHECK(a->register_region(fd.get(), 3, 0, 4096).text() ==
        "register_region: 1 fds on top of 6 of this session are above limits.max_fds = 6");
  REQUIRE(settled(6));
  const auto b = client_of(harness);  // its reply to hello has two fds, which count until they are read
  REQUIRE(b->join("b", 1, 0).status.code == 0);
  REQUIRE(b->register_region(fd.get(), 0, 0, 4096).ok());
  REQUIRE(b->register_region(fd.get(), 1, 0, 4096).ok());
  CHECK(b->register_region(fd.get(), 2, 0, 4096).text() ==
        "register_region: 1 fds on top of 11 of node here are above what RLIMIT_NOFILE = 100 leaves = 11");
  REQUIRE(settled(11));
  RawClient c(harness.socket());
  CHECK(contains(c.wait_for_end().text(),
                 "a connection of " + uid_text() + ": 2 fds on top of 11 of node here"));
}

TEST_CASE("channels, daemon memory and mappings are counted for groups") {
  Harness harness([](ServerOptions& options) {
    options.limits.max_channels = 100;
    options.budget = NodeBudget::of_this_process();
    options.budget->mappings = 4;
  });
  const auto client = client_of(harness);  // its segment: 1 mapping
  auto join = RawClient::join_message("remote", 33, 0);
  join.lanes = 3;
  REQUIRE(said(client->request<abi::JoinGroupReply>(join).status).ok());  // 99 channels
  ipc::copy_text(join.name, "more");
  join.world_size = 1;
  join.lanes = 2;
  CHECK(said(client->request<abi::JoinGroupReply>(join).status).text() ==
        "join_group \"more\": 2 channels on top of 99 of this session are above limits.max_channels = 100");
  join.lanes = 1;
  REQUIRE(said(client->request<abi::JoinGroupReply>(join).status).ok());
  const auto other = client_of(harness);
  CHECK(contains(said(other->join("g", 1, 0).status).text(),
                 "1 mappings on top of 4 of node here are above what vm.max_map_count"));

  Harness small([](ServerOptions& options) { options.limits.max_daemon_bytes = 1 << 20; });
  const auto large = client_of(small);
  auto many = RawClient::join_message("remote", 1024, 0);
  many.lanes = 4;
  const Status refused = said(large->request<abi::JoinGroupReply>(many).status);
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(contains(refused.text(), "bytes of daemon memory on top of"));
  CHECK(contains(refused.text(), "above limits.max_daemon_bytes = 1048576"));
  many.lanes = 1;
  many.world_size = 4;
  CHECK(said(large->request<abi::JoinGroupReply>(many).status).ok());
}

TEST_CASE("a user has so many sessions and connections, silent ones included, and not all of the node's") {
  Harness harness([](ServerOptions& options) {
    options.users.standard.max_sessions = 1;
    options.users.standard.max_connections = 3;
  });
  auto first = client_of(harness);
  RawClient second(harness.socket());
  const Status refused = said(second.hello("second").status);
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK(refused.text() ==
        "hello: 1 sessions on top of 1 of " + uid_text() + " are above users.default.max_sessions = 1");
  RawClient silent(harness.socket());
  REQUIRE(eventually([&] { return harness.session_count() == 3; }));
  RawClient one_more(harness.socket());
  CHECK(one_more.wait_for_end().text() == "a connection of " + uid_text() +
                                              ": 1 connections on top of 3 of " + uid_text() +
                                              " are above users.default.max_connections = 3");
  first->close();
  REQUIRE(eventually([&] { return harness.session_count() == 2; }));
  CHECK(second.hello("second").status.code == 0);
}

TEST_CASE("who may not connect is turned away by key, and let in after a reload") {
  Harness harness([](ServerOptions& options) { options.users.standard.may_connect = false; });
  RawClient stranger(harness.socket());
  const Status refused = stranger.wait_for_end();
  CHECK(refused.code() == StatusCode::kPermissionDenied);
  CHECK(refused.text() ==
        uid_text() + " may not use mkernel on node here: users.default.may_connect = false");
  harness.control([](SessionServer& server) {
    config::Users users;
    config::UserEntry group;  // by the group of the process
    group.group = true;
    group.id = ::getgid();
    group.lines["may_connect"] = 1;
    users.standard.may_connect = false;
    users.named["@us"] = group;
    server.set_limits({}, users);
    return 0;
  });
  client_of(harness);
}

TEST_CASE("a limit that changes holds for sessions that are there") {
  Harness harness;
  const auto client = client_of(harness);
  REQUIRE(client->join("g", 1, 0).status.code == 0);
  harness.control([](SessionServer& server) {
    config::Users users;
    users.standard.max_pinned_bytes = 4096;
    server.set_limits({}, users);
    return 0;
  });
  const ipc::UniqueFd fd = sealed(8192);
  CHECK(contains(client->register_region(fd.get(), 0, 0, 8192).text(),
                 "above users.default.max_pinned_bytes = 4096"));
}

TEST_CASE("the operator's weight and rates reach the proxies, whatever the client asks for") {
  Harness harness([](ServerOptions& options) {
    options.users.standard.weight = 3;
    options.users.standard.bytes_per_second = 1000;
    options.users.standard.requests_per_second = 7;
  });
  RawClient client(harness.socket());
  auto hello = RawClient::message<abi::Hello>(MessageType::kHello);
  ipc::copy_text(hello.client_name, "greedy");
  hello.device = -1;
  hello.weight = 64;
  REQUIRE(said(client.request<abi::HelloReply>(hello).status).ok());
  const auto users = harness.control([](SessionServer& server) { return server.users(); });
  REQUIRE(users.size() == 1);
  CHECK(users[0].uid == ::getuid());
  CHECK(users[0].limits.weight == 3);
  CHECK(users[0].sessions == 1);
  CHECK(users[0].connections == 1);
  CHECK(users[0].fds == 3);
  CHECK(users[0].limits.bytes_per_second == 1000);
  CHECK(users[0].limits.requests_per_second == 7);
}

/// Takes every fd that this process may still open.
class NoFdLeft {
 public:
  NoFdLeft() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = 400;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    for (int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC); fd >= 0;
         fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
      taken_.emplace_back(fd);
    }
  }
  ~NoFdLeft() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<ipc::UniqueFd> taken_;
};

TEST_CASE("a daemon without a free fd refuses the request that needs one, and the session goes on") {
  // The review's finding 9: the victim of another's hunger for fds was ended as a breaker of the protocol.
  Harness harness;
  const auto client = client_of(harness);
  REQUIRE(client->join("g", 1, 0).status.code == 0);
  const ipc::UniqueFd fd = sealed(4096);
  REQUIRE(std::move(ipc::Mapping::map(fd.get(), 0, 4096)).value().populate().ok());
  Status refused;
  {
    const NoFdLeft hunger;
    refused = client->register_region(fd.get(), 0, 0, 4096);
  }
  CHECK(refused.code() == StatusCode::kResourceExhausted);
  CHECK_MESSAGE(contains(refused.text(), "register_region: node here has no fd left"), refused.text());
  CHECK(client->register_region(fd.get(), 0, 0, 4096).ok());
}

}  // namespace
}  // namespace mkernel::session::testing
