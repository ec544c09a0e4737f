#include "tools/mkbench/timeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace mkernel;
using namespace mkernel::bench;
using Kind = TraceEvent::Kind;

namespace {

/// The one that is called so.
const nlohmann::json& named(const nlohmann::json& events, const std::string& name) {
  const auto of_name = [&](const nlohmann::json& e) { return e["name"] == name; };
  const auto at = std::find_if(events.begin(), events.end(), of_name);
  REQUIRE(at != events.end());
  REQUIRE(std::count_if(events.begin(), events.end(), of_name) == 1);
  return *at;
}

}  // namespace

TEST_CASE("a CTA and its warps are threads of their rank's process, named after the role") {
  const nlohmann::json events =
      timeline_of(3, "node1",
                  {{.kind = Kind::kRole, .track = 7, .name = "compute", .begin_ns = 1'000, .end_ns = 9'500},
                   {.kind = Kind::kWait,
                    .track = 7,
                    .name = "a chunk",
                    .peer = 2,
                    .begin_ns = 1'500,
                    .end_ns = 2'000,
                    .warp = 0,
                    .index = 11},
                   {.kind = Kind::kWork,
                    .track = 7,
                    .name = "product",
                    .begin_ns = 2'000,
                    .end_ns = 9'001,
                    .warp = 4,
                    .index = 0}});
  const auto& process = named(events, "process_name");
  CHECK(process["ph"] == "M");
  CHECK(process["pid"] == 3);
  CHECK(process["args"]["name"] == "rank 3 on node1");

  const auto& role = named(events, "compute");
  CHECK(role["cat"] == "role");
  CHECK(role["ph"] == "X");
  CHECK(role["ts"] == 1.0);
  CHECK(role["dur"] == 8.5);
  CHECK(!role.contains("args"));
  const auto& wait = named(events, "wait: a chunk");
  CHECK(wait["cat"] == "wait");
  CHECK(wait["args"]["rank"] == 2);
  CHECK(wait["args"]["index"] == 11);
  const auto& product = named(events, "product");
  CHECK(product["cat"] == "work");
  CHECK(product["dur"].get<double>() == doctest::Approx(7.001));
  CHECK(product["args"]["index"] == 0);
  CHECK(!product["args"].contains("rank"));

  const auto thread_name = [&](const nlohmann::json& event) -> std::string {
    for (const auto& e : events) {
      if (e["name"] == "thread_name" && e["pid"] == event["pid"] && e["tid"] == event["tid"])
        return e["args"]["name"];
    }
    return "";
  };
  CHECK(thread_name(role) == "compute 7");
  CHECK(thread_name(wait) == "compute 7 warp 0");
  CHECK(thread_name(product) == "compute 7 warp 4");
}

TEST_CASE("tracks of the cpu executor are threads without warps, and no two share one") {
  const nlohmann::json events = timeline_of(0, "here",
                                            {{.kind = Kind::kRole, .track = 0, .name = "compute"},
                                             {.kind = Kind::kRole, .track = 1, .name = "intra_comm"},
                                             {.kind = Kind::kWait, .track = 1, .name = "arrivals"}});
  CHECK(named(events, "compute")["tid"] != named(events, "intra_comm")["tid"]);
  CHECK(named(events, "wait: arrivals")["tid"] == named(events, "intra_comm")["tid"]);
  CHECK(named(events, "compute")["tid"] != 0);
  CHECK(std::count_if(events.begin(), events.end(),
                      [](const nlohmann::json& e) { return e["name"] == "thread_name"; }) == 2);
}
