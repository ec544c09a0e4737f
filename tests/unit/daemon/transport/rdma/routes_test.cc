// Which pair of ports is taken: by preference, by what is up, and by who has failed when.
#include "daemon/transport/rdma/routes.h"

#include <doctest/doctest.h>

namespace mkernel::transport::rdma {
namespace {

using std::chrono::milliseconds;

struct Ports {
  std::vector<bool> up;
  Routes routes(bool every_pair = false) {
    return Routes({static_cast<std::uint32_t>(up.size()), milliseconds(50),
                   [this](std::uint32_t local) { return up[local]; }, every_pair});
  }
};

/// Every route, best first: each fails in its turn.
std::vector<Route> in_order(Routes& routes, Time now) {
  std::vector<Route> order;
  while (const auto route = routes.pick(now)) {
    order.push_back(*route);
    routes.failed(*route, now);
  }
  return order;
}

const Time kStart = Time() + milliseconds(1000);

TEST_CASE("an endpoint lists paths, as many as one believes") {
  CHECK(paths_in("") == 1);
  CHECK(paths_in("rdmap79s0") == 1);
  CHECK(paths_in("mlx5_0:1, mlx5_1:1") == 2);
  CHECK(paths_in(std::string(1000, ',')) == kMaxPaths);
}

TEST_CASE("ports of equal position belong together, and what is left over takes turns") {
  Ports ports{{true, true}};
  Routes routes = ports.routes();
  routes.know_remote(3);
  CHECK(in_order(routes, kStart) == std::vector<Route>{{0, 0}, {1, 1}, {0, 2}});
  Routes fewer = ports.routes();
  fewer.know_remote(1);
  CHECK(in_order(fewer, kStart) == std::vector<Route>{{0, 0}, {1, 0}});
}

TEST_CASE("where every port reaches every other, pairs of different positions come last") {
  Ports ports{{true, true}};
  Routes routes = ports.routes(true);
  routes.know_remote(2);
  CHECK(in_order(routes, kStart) == std::vector<Route>{{0, 0}, {1, 1}, {0, 1}, {1, 0}});
}

TEST_CASE("a port that is down is passed over, and its routes are as good as new when it changes") {
  Ports ports{{true, true}};
  Routes routes = ports.routes();
  routes.know_remote(2);
  routes.failed({0, 0}, kStart);
  ports.up[0] = false;
  CHECK(routes.pick(kStart + milliseconds(1000)) == Route{1, 1});
  CHECK(!routes.better({1, 1}, kStart + milliseconds(1000)));
  ports.up[0] = true;
  routes.look_again(0);
  CHECK(routes.pick(kStart) == Route{0, 0});
  ports.up = {false, false};
  CHECK(!routes.pick(kStart));
  CHECK(routes.next(kStart) == kNever);
}

TEST_CASE("a route waits twice as long after each failure until it has carried something") {
  Ports ports{{true, true}};
  Routes routes = ports.routes();
  routes.know_remote(2);
  const auto waits = [&](Time now, milliseconds wait) {
    routes.failed({0, 0}, now);
    CHECK(routes.next(now) <= now + wait);
    CHECK(!routes.better({1, 1}, now + wait - milliseconds(1)));
    CHECK(routes.better({1, 1}, now + wait) == Route{0, 0});
    return now + wait;
  };
  Time now = waits(kStart, milliseconds(50));
  now = waits(now, milliseconds(100));
  routes.answers({0, 0}, now);  // an empty write came back: it may be used, and is not trusted yet
  now = waits(now, milliseconds(200));
  for (int i = 0; i < 20; ++i) {
    routes.failed({0, 0}, now);
    now += milliseconds(30000);
  }
  now = waits(now, milliseconds(30000));
  routes.carries({0, 0});
  waits(now, milliseconds(50));
}

TEST_CASE("where all are waiting, one is tried in a quarter of a second however often it has failed") {
  Ports ports{{true}};
  Routes routes = ports.routes();
  Time now = kStart;
  for (int i = 0; i < 12; ++i) {
    routes.failed({0, 0}, now);
    now += milliseconds(30000);
  }
  routes.failed({0, 0}, now);
  CHECK(!routes.pick(now + milliseconds(249)));
  CHECK(routes.pick(now + milliseconds(250)) == Route{0, 0});
  CHECK(routes.next(now) == now + milliseconds(250));
}

}  // namespace
}  // namespace mkernel::transport::rdma
