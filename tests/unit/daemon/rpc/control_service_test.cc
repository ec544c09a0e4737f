// The control service and the mkctl program against a daemon that is made up: exit codes, links, the socket,
// a stuck daemon.
#include "daemon/rpc/control_service.h"

#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/daemon/rpc/fake_daemon.h"

namespace mkernel::rpc {

TEST_CASE("a wire that is pulled is in the link's row") {
  Served served;
  const Run run = mkctl(served.socket, "link --peer nodeB --rail 2 --down");
  CHECK(run.exit == 0);
  CHECK_MESSAGE(contains(run, "rails_down"), run.output);
  CHECK(served.daemon.shape.rails_down == 4);
}

TEST_CASE("exit status: unhealthy 1, usage 2, not reachable 3") {
  Served served;
  served.change([](FakeDaemon& daemon) { daemon.problems = {"peer nodeB is dead: silent"}; });
  const Run sick = mkctl(served.socket, "status");
  CHECK(sick.exit == 1);
  CHECK(contains(sick, "peer nodeB is dead: silent"));
  CHECK(mkctl(served.socket, "nonsense").exit == 2);
  CHECK(mkctl(served.socket, "status --sideways").exit == 2);
  CHECK(mkctl(served.socket, "link --peer nodeB --drop 2").exit == 2);
  CHECK(mkctl(served.socket, "--help").exit == 0);

  const std::string nowhere = (served.folder / "none.sock").string();
  const Run missing = mkctl(nowhere, "status");
  CHECK(missing.exit == 3);
  CHECK(contains(missing, nowhere));
  CHECK(contains(missing, "no such socket"));
}

TEST_CASE("link changes what is given and keeps the rest; errors come with their text") {
  Served served;
  CHECK(mkctl(served.socket, "link --peer nodeB --latency-us 250").exit == 0);
  const Run down = mkctl(served.socket, "link --peer nodeB --down -o json");
  REQUIRE(down.exit == 0);
  const auto link = nlohmann::json::parse(down.output)["link"];
  CHECK(link["down"] == true);
  CHECK(link["latency_us"] == 250);
  const Run unknown = mkctl(served.socket, "link --peer nodeX --up");
  CHECK(unknown.exit == 1);
  CHECK(contains(unknown, "no peer \"nodeX\""));
  CHECK(contains(mkctl(served.socket, "reload"), "file:3: speling"));
}

TEST_CASE("a second daemon does not take the socket of a living one") {
  Served served;
  FakeDaemon other;
  const auto second = ControlService::start(served.io, other, served.socket);
  CHECK(second.status().code() == StatusCode::kAlreadyExists);
  CHECK(second.status().text().find(served.socket) != std::string::npos);
  CHECK(mkctl(served.socket, "status").exit == 0);
}

TEST_CASE("a file that is no socket is left alone, and named") {
  Served served;
  const std::string path = served.folder / "data.db";
  std::ofstream(path) << "precious";
  FakeDaemon other;
  const Status refused = ControlService::start(served.io, other, path).status();
  CHECK(refused.code() == StatusCode::kAlreadyExists);
  CHECK(refused.text() == "control socket " + path + ": the file exists and is not a socket");
  CHECK(std::filesystem::file_size(path) == 8);
}

TEST_CASE("the control socket is for owner and group, whatever the process allows for files") {
  const mode_t before = ::umask(0);
  {
    const Served served;
    CHECK(std::filesystem::status(served.socket).permissions() == std::filesystem::perms(0660));
  }
  CHECK(::umask(before) == 0);
}

TEST_CASE("a daemon whose control thread is stuck is an error, not a hang") {
  Served served;
  std::promise<void> release, stuck;
  boost::asio::post(served.io, [&] {
    stuck.set_value();
    release.get_future().wait();
  });
  stuck.get_future().wait();
  const Run run = mkctl(served.socket, "status");
  release.set_value();
  CHECK(run.exit == 3);
  CHECK(contains(run, served.socket));
}

}  // namespace mkernel::rpc
