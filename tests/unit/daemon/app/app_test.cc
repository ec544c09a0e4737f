// The composed daemon, in this process: starts, serves jobs, mkctl and another daemon, reloads, stops, leaves
// nothing behind.
#include "daemon/app/app.h"

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "daemon/config/config.h"
#include "tests/support/free_port.h"
#include "tests/unit/daemon/session/harness.h"

namespace mkernel::app {
namespace {

using session::testing::contains;
using session::testing::eventually;
using session::testing::RawClient;
using session::testing::TemporaryFolder;

/// One daemon on loopback with its control thread.
class Node {
 public:
  Node(const TemporaryFolder& folder, const std::string& name, const std::string& more = "")
      : file_(folder.file(name + ".toml")), socket_(folder.file(name) + "/mkerneld.sock") {
    std::ofstream(file_) << "[node]\nname = \"" << name << "\"\nruntime_dir = \"" << folder.file(name)
                         << "\"\n[limits]\ndrain_ms = 500\n"
                         << more;
    auto config = config::load(file_);
    REQUIRE_MESSAGE(config.ok(), config.status().text());
    app_.emplace(std::move(config).value());
    started_ = app_->start();
    if (started_.ok()) thread_ = std::thread([this] { app_->run(); });
  }
  ~Node() { stop(); }

  void stop() {
    if (!app_) return;
    if (thread_.joinable()) {
      app_->request_stop();
      thread_.join();
    }
    app_.reset();
  }
  /// Waits until the daemon has stopped by itself.
  void wait() { thread_.join(); }
  void configure(const std::string& text) const { std::ofstream(file_, std::ios::app) << text; }
  const Status& started() const { return started_; }
  const std::string& file() const { return file_; }
  const std::string& socket() const { return socket_; }

 private:
  std::string file_, socket_;
  std::optional<App> app_;
  Status started_;
  std::thread thread_;
};

std::size_t entries(const char* folder) {
  const auto begin = std::filesystem::directory_iterator(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

std::string pair_config(std::uint16_t own, std::uint16_t other) {
  return "[peers]\nlisten = \"127.0.0.1:" + std::to_string(own) +
         "\"\nlist = [\"127.0.0.1:" + std::to_string(other) + "\"]\ntime_scale = 0.2\n";
}

const std::string kAlone = "[peers]\nlisten = \"127.0.0.1:0\"\n";

TEST_CASE("a daemon starts, serves a session, stops, and leaves no socket, thread or mapping") {
  TemporaryFolder folder;
  { Node(folder, "warm", kAlone); }  // what gRPC makes once is made before the count
  const std::size_t threads = entries("/proc/self/task");
  {
    Node node(folder, "a", kAlone);
    REQUIRE_MESSAGE(node.started().ok(), node.started().text());
    CHECK(std::filesystem::exists(folder.file("a") + "/control.sock"));
    RawClient client(node.socket());
    const auto hello = client.hello();
    REQUIRE(hello.status.code == 0);
    CHECK(ipc::text_of(hello.node_name) == "a");
    REQUIRE(client.join("g", 1, 0).status.code == 0);
    node.stop();
    CHECK(contains(client.wait_for_end().text(), "mkerneld on node a is stopping"));
    CHECK(client.group_segment().abort == static_cast<std::uint32_t>(StatusCode::kUnavailable));
  }
  CHECK_FALSE(std::filesystem::exists(folder.file("a") + "/mkerneld.sock"));
  CHECK_FALSE(std::filesystem::exists(folder.file("a") + "/control.sock"));
  CHECK(eventually([&] { return entries("/proc/self/task") <= threads; }));
}

TEST_CASE("a start that cannot succeed says why and takes down what it had started") {
  TemporaryFolder folder;
  Node first(folder, "a", kAlone);
  REQUIRE_MESSAGE(first.started().ok(), first.started().text());
  SUBCASE("the session socket is occupied") {
    Node second(folder, "b", kAlone + "[control]\nsocket = \"" + folder.file("c.sock") + "\"\n");
    REQUIRE(second.started().ok());
    Node third(folder, "b", kAlone + "[control]\nsocket = \"" + folder.file("d.sock") + "\"\n");
    CHECK(third.started().code() == StatusCode::kAlreadyExists);
    CHECK_MESSAGE(contains(third.started().text(), "is in use by process"), third.started().text());
    CHECK(RawClient(second.socket()).hello().status.code == 0);
  }
  CHECK(RawClient(first.socket()).hello().status.code == 0);
}

TEST_CASE("SIGHUP takes over what can change, a file with mistakes changes nothing, SIGTERM stops") {
  TemporaryFolder folder;
  Node node(folder, "a", kAlone);
  REQUIRE_MESSAGE(node.started().ok(), node.started().text());
  RawClient first(node.socket());
  REQUIRE(first.hello().status.code == 0);

  node.configure("[log]\nlevel = \"loud\"\n");
  REQUIRE(::kill(::getpid(), SIGHUP) == 0);
  RawClient second(node.socket());
  CHECK(second.hello().status.code == 0);

  std::ofstream(node.file()) << "[node]\nname = \"a\"\nruntime_dir = \"" << folder.file("a") << "\"\n"
                             << kAlone << "[limits]\nmax_sessions = 2\n";
  REQUIRE(::kill(::getpid(), SIGHUP) == 0);
  std::string refusal;
  CHECK(eventually([&] {
    RawClient other(node.socket());
    refusal = ipc::from_reply(other.hello().status).text();
    return contains(refusal, "limits.max_sessions = 2");
  }));
  CHECK_MESSAGE(contains(refusal, "node a has "), refusal);

  REQUIRE(::kill(::getpid(), SIGTERM) == 0);
  node.wait();
  CHECK(contains(first.wait_for_end().text(), "is stopping"));
}

TEST_CASE("a group over two daemons forms, and fails by name when one of them stops") {
  TemporaryFolder folder;
  const std::uint16_t ports[] = {test::free_port(), test::free_port()};
  Node a(folder, "a", pair_config(ports[0], ports[1]));
  Node b(folder, "b", pair_config(ports[1], ports[0]));
  REQUIRE_MESSAGE(a.started().ok(), a.started().text());
  REQUIRE_MESSAGE(b.started().ok(), b.started().text());
  RawClient rank0(a.socket()), rank1(b.socket());
  REQUIRE(rank0.hello("zero").status.code == 0);
  REQUIRE(rank1.hello("one").status.code == 0);
  rank0.start_join("g", 2, 0);
  const auto joined = rank1.join("g", 2, 1);
  REQUIRE_MESSAGE(joined.status.code == 0, joined.status.text);
  REQUIRE(rank0.finish_join().status.code == 0);
  CHECK(rank0.group_segment().node_count == 2);
  CHECK(rank0.group_segment().instance == rank1.group_segment().instance);

  const ipc::UniqueFd memory = std::move(ipc::create_shared_memory("region", 4096)).value();
  REQUIRE(rank1.register_region(memory.get(), 3, 0, 4096).ok());
  const abi::GroupSegment& segment = rank0.group_segment();
  auto* map = rank0.group_mapping().at<abi::RegionEntry>(segment.regions_offset);
  auto& seen = map[1 * segment.region_capacity + 3].bytes;
  CHECK(eventually([&] { return std::atomic_ref<std::uint64_t>(seen).load() == 4096; }));

  b.stop();
  auto& abort_word = rank0.group_segment().abort;
  REQUIRE(eventually([&] { return std::atomic_ref<std::uint32_t>(abort_word).load() != 0; }));
  CHECK(segment.failure.culprit == 1);
  CHECK(ipc::text_of(segment.failure.node) == "b");
  CHECK_MESSAGE(contains(segment.failure.text, "mkerneld on node b is stopping"), segment.failure.text);
  CHECK(rank0.leave().ok());
}

}  // namespace
}  // namespace mkernel::app
