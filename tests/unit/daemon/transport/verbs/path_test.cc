// A port and its events.
#include "daemon/transport/verbs/path.h"

#include <doctest/doctest.h>

#include "tests/support/fake_nic/fabric.h"
#include "tests/support/verbs_port.h"
#include "tests/unit/daemon/transport/verbs/pair.h"

namespace mkernel::test {
namespace {

TEST_CASE("events that come together mean one look at the port, and none at the GIDs of one that is down") {
  nic::Fabric fabric;
  fabric.add_device("node-a", {.name = "mlx5_0"});
  int looks = 0;
  transport::VerbsOptions options;
  options.verbs = fabric.verbs("node-a");
  options.choose_again = [&looks](const transport::VerbsPort& port) {
    ++looks;
    return std::optional(port);
  };
  auto made = transport::verbs::Path::open(options, roce_port("mlx5_0", options.verbs));
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  transport::verbs::Path& path = **made;
  looks = 0;

  fabric.set_port("mlx5_0", 1, IBV_PORT_DOWN);
  CHECK(path.take_events().changed);
  CHECK(path.state().code() == StatusCode::kUnavailable);
  CHECK(contains(path.state().text(), "mlx5_0 port 1 is "));
  CHECK(looks == 0);

  fabric.set_port("mlx5_0", 1, IBV_PORT_ACTIVE);
  fabric.set_port("mlx5_0", 1, IBV_PORT_DOWN);
  fabric.set_port("mlx5_0", 1, IBV_PORT_ACTIVE);
  CHECK(path.take_events().changed);
  CHECK(path.state().ok());
  CHECK(looks == 1);
  CHECK_FALSE(path.take_events().changed);
}

}  // namespace
}  // namespace mkernel::test
