// How sessions end: kill -9, bad slots, a stopping daemon, an occupied socket. Afterwards fds, mappings and
// threads are what they were.
#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include "tests/unit/daemon/session/harness.h"

namespace mkernel::session::testing {
namespace {

struct Usage {
  std::size_t fds = 0, mappings = 0, threads = 0;
};

std::size_t entries(const char* folder) {
  const auto begin = std::filesystem::directory_iterator(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

Usage usage() {
  Usage now{entries("/proc/self/fd"), 0, entries("/proc/self/task")};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) now.mappings += contains(line, "memfd:") ? 1 : 0;
  return now;
}

/// A client in a process of its own that says hello, joins, registers a megabyte, reports one byte through
/// `ready` and waits to be killed. After fork() in a threaded process it keeps to plain system calls.
[[noreturn]] void client_process(const std::string& socket, const abi::JoinGroup& join, int ready) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.c_str(), socket.size());
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) ::_exit(1);
  const auto hello = [] {
    auto body = RawClient::message<abi::Hello>(abi::MessageType::kHello);
    body.client_name[0] = 'k';
    body.device = -1;
    return body;
  }();
  abi::JoinGroupReply joined;
  char scrap[abi::kMaxMessageBytes];
  if (::send(fd, &hello, sizeof(hello), 0) < 0 || ::recv(fd, scrap, sizeof(scrap), 0) <= 0) ::_exit(2);
  if (::send(fd, &join, sizeof(join), 0) < 0 || ::recv(fd, &joined, sizeof(joined), 0) <= 0) ::_exit(3);
  auto region = ipc::create_shared_memory("killed", 1 << 20);
  auto pages = ipc::Mapping::map(region->get(), 0, 1 << 20);
  if (!pages.ok() || !pages->populate().ok()) ::_exit(6);
  auto ask = RawClient::message<abi::RegisterRegion>(abi::MessageType::kRegisterRegion);
  ask.group = joined.group;
  ask.kind = 1;
  ask.bytes = 1 << 20;
  const int shared = region->get();
  if (!ipc::send_message(fd, ask, {&shared, 1}).ok() || ::recv(fd, scrap, sizeof(scrap), 0) <= 0) ::_exit(4);
  if (::write(ready, "r", 1) != 1) ::_exit(5);
  for (;;) ::pause();
}

pid_t start_client(const std::string& socket, const std::string& group) {
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const abi::JoinGroup join = RawClient::join_message(group, 1, 0);
  const pid_t pid = ::fork();
  if (pid == 0) client_process(socket, join, ready[1]);
  ::close(ready[1]);
  char byte = 0;
  const ssize_t got = ::read(ready[0], &byte, 1);
  ::close(ready[0]);
  REQUIRE(pid > 0);
  REQUIRE(got == 1);
  return pid;
}

void kill_client(pid_t pid) {
  REQUIRE(::kill(pid, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
}

/// Nothing is charged for any more: the memory of sessions that ended is let go of by another thread, the
/// charge for it last.
bool nothing_held(Harness& harness) {
  const auto use = harness.control([](SessionServer& server) { return server.node_use(); });
  return harness.session_count() == 0 && use.fds == 0 && use.mappings == 0;
}

TEST_CASE("after fifty clients are killed, fds, shared memory and threads are back where they were") {
  Harness harness;
  kill_client(start_client(harness.socket(), "first"));  // what is made once is made before the count
  REQUIRE(eventually([&] { return nothing_held(harness); }));
  const Usage before = usage();
  constexpr int kAtOnce = 10;
  for (int round = 0; round < 5; ++round) {
    std::vector<pid_t> clients;
    for (int i = 0; i < kAtOnce; ++i) {
      clients.push_back(start_client(harness.socket(), "g" + std::to_string(i)));
    }
    CHECK(harness.control([](SessionServer& server) { return server.regions(); }).size() == kAtOnce);
    CHECK(usage().mappings >= before.mappings + 3 * kAtOnce);  // session, group and region of each
    for (const pid_t client : clients) kill_client(client);
    REQUIRE(eventually([&] { return nothing_held(harness); }));
  }
  const Usage after = usage();
  CHECK(after.fds == before.fds);
  CHECK(after.mappings == before.mappings);
  // Threads of workers that have no more to do end a moment later.
  CHECK(eventually([&] { return usage().threads <= before.threads; }));
  CHECK(harness.control([&](SessionServer&) { return harness.coordinator().ending; }) == 51);
  CHECK(harness.control([&](SessionServer&) { return harness.coordinator().gone; }) == 51);
}

TEST_CASE("a child that keeps the socket open does not keep a dead client's session") {
  Harness harness;
  int lines[2];
  REQUIRE(::pipe2(lines, O_CLOEXEC) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, harness.socket().c_str(), harness.socket().size());
    auto hello = RawClient::message<abi::Hello>(abi::MessageType::kHello);
    hello.client_name[0] = 'p';
    hello.device = -1;
    char scrap[abi::kMaxMessageBytes];
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) ::_exit(1);
    if (::send(fd, &hello, sizeof(hello), 0) < 0 || ::recv(fd, scrap, sizeof(scrap), 0) <= 0) ::_exit(2);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    if (::write(lines[1], &child, sizeof(child)) != sizeof(child)) ::_exit(3);
    for (;;) ::pause();
  }
  pid_t child = 0;
  REQUIRE(::read(lines[0], &child, sizeof(child)) == sizeof(child));
  CHECK(harness.session_count() == 1);
  kill_client(parent);
  CHECK(eventually([&] { return harness.session_count() == 0; }));
  REQUIRE(::kill(child, SIGKILL) == 0);
  ::close(lines[0]);
  ::close(lines[1]);
}

TEST_CASE("a left group can be joined again, with fresh channels") {
  Harness harness;
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  const std::uint32_t before = client.group_segment().first_channel;
  const std::uint32_t handle = client.handle();
  CHECK(client.leave().ok());
  CHECK(contains(client.leave().text(), "is not joined by this session"));
  REQUIRE(client.join("g", 1, 0).status.code == 0);
  CHECK(client.handle() != handle);
  CHECK(client.group_segment().first_channel != before);
  CHECK(harness.control([&](SessionServer&) { return harness.coordinator().left; }) == 1);
}

TEST_CASE("when a client goes, its peers' groups fail with its rank and pid") {
  Harness harness;
  RawClient a(harness.socket()), b(harness.socket());
  join_both(a, b);
  b.close();
  abi::GroupSegment& segment = a.group_segment();
  REQUIRE(eventually([&] { return std::atomic_ref<std::uint32_t>(segment.abort).load() != 0; }));
  CHECK(segment.abort == static_cast<std::uint32_t>(StatusCode::kUnavailable));
  CHECK(segment.failure.culprit == 1);
  CHECK(contains(segment.failure.text, "client \"b\" (pid " + std::to_string(::getpid()) + ")"));
  CHECK(eventually([&] { return harness.session_count() == 1; }));
  CHECK(a.leave().ok());
}

TEST_CASE("a bad slot ends its session with a precise error and touches nobody else") {
  Harness harness;
  RawClient bad(harness.socket()), good(harness.socket());
  REQUIRE(bad.hello("bad").status.code == 0);
  const std::vector<ipc::UniqueFd> bad_fds = std::move(bad.last_fds());
  REQUIRE(good.hello("good").status.code == 0);
  REQUIRE(bad.join("b", 1, 0).status.code == 0);
  REQUIRE(good.join("g", 1, 0).status.code == 0);

  abi::WorkRequest request{};
  request.opcode = static_cast<std::uint8_t>(abi::Opcode::kPut);
  request.channel = 12345;
  const abi::SessionSegment& segment = bad.session_segment();
  put(bad, bad_fds.at(1).get(), request);

  const Status end = bad.wait_for_end();
  CHECK_FALSE(end.ok());
  CHECK_MESSAGE(contains(end.text(), "12345"), end.text());
  CHECK(segment.abort == static_cast<std::uint32_t>(end.code()));
  CHECK(bad.group_segment().abort == segment.abort);
  CHECK(good.session_segment().abort == 0);
  CHECK(good.leave().ok());
}

TEST_CASE("the puts of a failed group do not hold up the end of its session") {
  Harness harness([](ServerOptions& options) { options.limits.drain = std::chrono::minutes(10); });
  RawClient client(harness.socket());
  REQUIRE(client.hello().status.code == 0);
  const std::vector<ipc::UniqueFd> fds = std::move(client.last_fds());
  REQUIRE(client.join("remote", 2, 0).status.code == 0);
  const ipc::UniqueFd memory = std::move(ipc::create_shared_memory("region", 4096)).value();
  REQUIRE(client.register_region(memory.get(), 0, 0, 4096).ok());
  harness.control([&](SessionServer&) {
    harness.coordinator().announce_elsewhere("remote", 1, 0, {.bytes = 4096});
    return 0;
  });
  abi::WorkRequest request{};  // from region 0 to region 0 of rank 1, which no transport ever takes
  request.opcode = static_cast<std::uint8_t>(abi::Opcode::kPut);
  request.channel = client.group_segment().first_channel + 2;
  request.peer = 1;
  request.length = 4096;
  put(client, fds.at(1).get(), request);

  auto fail = RawClient::message<abi::FailGroup>(abi::MessageType::kFailGroup);
  fail.group = client.handle();
  fail.code = static_cast<std::uint32_t>(StatusCode::kDataLoss);
  REQUIRE(client.request<abi::PlainReply>(fail).status.code == 0);
  abi::GroupSegment& segment = client.group_segment();
  REQUIRE(eventually([&] { return std::atomic_ref<std::uint32_t>(segment.abort).load() != 0; }));

  client.close();
  CHECK(eventually([&] { return nothing_held(harness); }));
}

TEST_CASE("what a client says that it has launched is shown as it is, and changes nothing else") {
  Harness harness;
  RawClient honest(harness.socket()), boastful(harness.socket());
  REQUIRE(honest.hello("honest").status.code == 0);
  REQUIRE(boastful.hello("boastful").status.code == 0);
  const auto shown = [&](const std::string& name) {
    const auto sessions = harness.control([](SessionServer& server) { return server.sessions(); });
    for (const SessionSnapshot& session : sessions)
      if (session.client_name == name) return session;
    return SessionSnapshot{};
  };
  CHECK(shown("honest").launches_total == 0);
  std::atomic_ref(honest.session_segment().launches).fetch_add(12);
  std::atomic_ref(honest.session_segment().fallbacks).fetch_add(3);
  std::atomic_ref(boastful.session_segment().launches).store(~std::uint64_t{0});
  std::atomic_ref(boastful.session_segment().fallbacks).store(~std::uint64_t{0} - 1);
  CHECK(shown("honest").launches_total == 12);
  CHECK(shown("honest").fallbacks_total == 3);
  CHECK(shown("boastful").launches_total == ~std::uint64_t{0});
  CHECK(shown("boastful").fallbacks_total == ~std::uint64_t{0} - 1);
  REQUIRE(boastful.join("g", 1, 0).status.code == 0);  // the session goes on
  CHECK(shown("boastful").groups == 1);
  CHECK(boastful.leave().ok());
}

TEST_CASE("a stopping daemon waits for operations in flight, then tells everybody") {
  Harness harness;
  RawClient busy(harness.socket()), idle(harness.socket());
  REQUIRE(busy.hello("busy").status.code == 0);
  REQUIRE(idle.hello("idle").status.code == 0);
  std::atomic_ref<std::uint32_t>(busy.session_segment().active).store(1);
  std::promise<void> done;
  const Status why(StatusCode::kUnavailable, "mkerneld on node here is stopping");
  harness.control([&](SessionServer& server) {
    server.stop(std::chrono::seconds(30), why, [&] { done.set_value(); });
    return 0;
  });
  CHECK_FALSE(RawClient(harness.socket()).connected());
  CHECK(busy.session_segment().abort == 0);
  std::atomic_ref<std::uint32_t>(busy.session_segment().active).store(0);
  CHECK(contains(busy.wait_for_end().text(), "is stopping"));
  CHECK(contains(idle.wait_for_end().text(), "is stopping"));
  CHECK(done.get_future().wait_for(kPatience) == std::future_status::ready);
  CHECK(idle.session_segment().abort == static_cast<std::uint32_t>(StatusCode::kUnavailable));
}

TEST_CASE("a stop does not wait beyond its limit for a client that never finishes") {
  Harness harness;
  RawClient busy(harness.socket());
  REQUIRE(busy.hello("busy").status.code == 0);
  std::atomic_ref<std::uint32_t>(busy.session_segment().active).store(1);
  std::promise<void> done;
  harness.control([&](SessionServer& server) {
    server.stop(std::chrono::milliseconds(50), {StatusCode::kUnavailable, "stopping"},
                [&] { done.set_value(); });
    return 0;
  });
  CHECK(contains(busy.wait_for_end().text(), "stopping"));
  CHECK(done.get_future().wait_for(kPatience) == std::future_status::ready);
}

TEST_CASE("a server can go in any state of its sessions") {
  auto harness = std::make_unique<Harness>();
  RawClient silent(harness->socket()), forming(harness->socket()), ready(harness->socket());
  REQUIRE(forming.hello("forming").status.code == 0);
  REQUIRE(ready.hello("ready").status.code == 0);
  forming.start_join("g", 2, 0);
  REQUIRE(ready.join("h", 1, 0).status.code == 0);
  auto exchange = RawClient::message<abi::Exchange>(abi::MessageType::kExchange);
  exchange.group = ready.handle();
  exchange.round = 1;
  REQUIRE(ipc::send_message(ready.fd(), exchange).ok());
  harness.reset();
  ipc::Packet packet;
  CHECK(silent.receive(packet).code() == StatusCode::kUnavailable);
}

TEST_CASE("an occupied socket is refused and the process that holds it is named") {
  Harness first;
  Harness second([&](ServerOptions& options) { options.listener.path = first.socket(); });
  CHECK(second.started().code() == StatusCode::kAlreadyExists);
  CHECK(contains(second.started().text(), "is in use by process " + std::to_string(::getpid())));
  RawClient client(first.socket());  // the first one is none the worse for it
  CHECK(client.hello().status.code == 0);
}

TEST_CASE("a leftover socket is taken over, a file that is no socket is left alone") {
  TemporaryFolder folder;
  const std::string path = folder.file("s");
  {
    const ipc::UniqueFd leftover(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    REQUIRE(::bind(leftover.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  {
    Harness harness([&](ServerOptions& options) { options.listener.path = path; });
    REQUIRE_MESSAGE(harness.started().ok(), harness.started().text());
    CHECK(RawClient(path).hello().status.code == 0);
    CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::all) ==
          static_cast<std::filesystem::perms>(0660));
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "precious";
  Harness harness([&](ServerOptions& options) { options.listener.path = path; });
  CHECK(contains(harness.started().text(), "exists and is not a socket"));
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("an unknown group for the socket is refused by name, and leaves no socket behind") {
  Harness harness([](ServerOptions& options) { options.listener.group = "no-such-group"; });
  CHECK(harness.started().code() == StatusCode::kNotFound);
  CHECK(contains(harness.started().text(), "node.socket_group \"no-such-group\""));
  CHECK_FALSE(std::filesystem::exists(harness.socket()));
}

}  // namespace
}  // namespace mkernel::session::testing
