// What tests of the doctor's checks share.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/tools/mkctl/healthy_node.h"
#include "tools/mkctl/doctor/checks.h"

namespace mkernel::mkctl::doctor {

/// Every check but the one that says of RDMA what it asks of the network, however well the node is.
inline std::vector<Check> checks_of_health() {
  std::vector<Check> all = checks();
  std::erase_if(all, [](const Check& check) { return check.run == check_payload; });
  return all;
}

/// What a check finds on a healthy node after `harm`. Every other check must still find nothing.
inline Findings after(Findings (*run)(const Facts&), const std::function<void(Facts&)>& harm,
                      const std::vector<std::string>& others_too = {}) {
  Facts facts = healthy_node();
  harm(facts);
  for (const Check& check : checks_of_health()) {
    CAPTURE(check.name);
    bool expected = check.run == run;
    for (const std::string& other : others_too) expected = expected || other == check.name;
    if (!expected) CHECK(check.run(facts).empty());
  }
  Findings findings = run(facts);
  for (const Finding& finding : findings) {
    CHECK(!finding.what.empty());
    CHECK(!finding.why.empty());
    CHECK(!finding.todo.empty());
  }
  return findings;
}

/// One finding of that severity that names `part`.
inline void one(const Findings& findings, Severity severity, const std::string& part) {
  REQUIRE(findings.size() == 1);
  CAPTURE(findings[0].what);
  CHECK(findings[0].severity == severity);
  CHECK(findings[0].what.find(part) != std::string::npos);
}

}  // namespace mkernel::mkctl::doctor
