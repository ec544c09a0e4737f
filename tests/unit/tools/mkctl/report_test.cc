#include "tools/mkctl/doctor/report.h"

#include <doctest/doctest.h>

#include <sstream>

#include "tests/unit/tools/mkctl/healthy_node.h"

namespace mkernel::mkctl::doctor {
namespace {

std::string printed(const Report& report) {
  std::ostringstream out;
  print(out, report);
  return out.str();
}

TEST_CASE("nothing found: good, and what was looked at") {
  const Report report = examine(healthy_node());
  CHECK(report.good());
  REQUIRE(to_json(report)["findings"].size() == 1);  // what RDMA asks of the network
  CHECK(to_json(report)["findings"][0]["check"] == "payload");
  CHECK(to_json(report)["checked"].size() == checks().size());
  CHECK(to_json(report)["daemon_reached"] == true);
  const std::string text = printed(report);
  CHECK(text.find("# mkerneld on node0, pid 4711, /run/mkernel/control.sock") == 0);
  CHECK(text.find("nothing found: daemon, daemons, version") != std::string::npos);
}

TEST_CASE("warnings leave the status good, errors do not, and come first") {
  Facts facts = healthy_node();
  facts.clock_synchronised = false;
  CHECK(examine(facts).good());
  facts.bridges[0].redirects.reset();
  facts.infiniband_folder = false;
  const Report report = examine(facts);
  CHECK(!report.good());
  const auto findings = to_json(report)["findings"];
  REQUIRE(findings.size() == 4);
  CHECK(findings[0]["severity"] == "error");
  CHECK(findings[0]["check"] == "devices");
  CHECK(findings[1]["severity"] == "warning");
  CHECK(findings[1]["check"] == "clock");
  CHECK(findings[2]["severity"] == "info");
  CHECK(findings[3]["check"] == "payload");
  const std::string text = printed(report);
  CHECK(text.find("error: the kernel has RDMA devices, but there is no /dev/infiniband [devices]\n") !=
        std::string::npos);
  CHECK(text.find("\n  what to do: run chrony") != std::string::npos);
  CHECK(text.find("nothing found: daemon") != std::string::npos);
  CHECK(text.find("clock,") == std::string::npos);
}

}  // namespace
}  // namespace mkernel::mkctl::doctor
