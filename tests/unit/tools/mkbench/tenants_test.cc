// The figures of `mkbench tenants`, from samples that are made up.
#include <doctest/doctest.h>

#include "tools/mkbench/tenants_bystander.h"
#include "tools/mkbench/tenants_report.h"

namespace mkernel::bench {
namespace {

TEST_CASE("a quantile is a sample, and the last one is the worst") {
  std::vector<double> samples;
  for (int i = 1000; i >= 1; --i) samples.push_back(i);
  CHECK(quantile(samples, 0.5) == 500);
  CHECK(quantile(samples, 0.99) == 990);
  CHECK(quantile(samples, 0.999) == 999);
  CHECK(quantile(samples, 1) == 1000);
  CHECK(quantile({7}, 0.5) == 7);
  CHECK(quantile({}, 0.5) == 0);
}

TEST_CASE("signals that were due during a stop count too") {
  std::vector<double> samples;
  add_with_missed(samples, 90, 200);
  CHECK(samples == std::vector<double>{90});
  add_with_missed(samples, 700, 200);
  CHECK(samples == std::vector<double>{90, 700, 500, 300, 100});
  samples.clear();
  add_with_missed(samples, 400, 200);
  CHECK(samples == std::vector<double>{400, 200});
}

TenantCase measured_case() {
  TenantCase measured{"kill",
                      {{10, 20, 30}, {100, 300}, {4, 5, 6}},
                      {{10, 20, 5030}, {100, 9300}, {2, 1, 3}},
                      17,
                      "limits.max",
                      ""};
  return measured;
}

TEST_CASE("a row says what the attacker added, and what is left of a fair share") {
  const auto row = to_json(measured_case(), 2.5);
  CHECK(row["attack"] == "kill");
  CHECK(row["turns"] == 3);
  CHECK(row["without"]["worst_us"] == 30);
  CHECK(row["with"]["worst_us"] == 5030);
  CHECK(row["worst_added_ms"] == 5.0);
  CHECK(row["with"]["answer_worst_us"] == 9300);
  CHECK(row["answer_worst_added_ms"] == 9.0);
  CHECK(row["with"]["gbytes_per_second"] == 2);
  CHECK(row["of_fair_share"] == 0.8);
  CHECK(row["refused"] == "limits.max");
  CHECK(row["verified"] == true);
  CHECK_FALSE(row.contains("failed"));
  CHECK(to_json(measured_case(), {})["of_fair_share"].is_null());
  TenantCase failed = measured_case();
  failed.failed = "lost";
  CHECK(to_json(failed, {})["verified"] == false);
  CHECK(to_json(failed, {})["failed"] == "lost");
}

TEST_CASE("two lines for each attack, of one width, and words below") {
  TenantCase failed = measured_case();
  failed.failed = "lost";
  const auto table = tenants_table({measured_case(), failed}, 2.5);
  REQUIRE(table.size() == 5);
  for (const auto& line : table) CHECK(line.size() == table[0].size());
  CHECK(table[1][0] == "nobody");
  CHECK(table[2][0] == "kill");
  CHECK(table[2][6] == "9.30");
  CHECK(table[2][8] == "80 %");
  const auto notes = tenants_notes({measured_case(), failed});
  REQUIRE(notes.size() == 3);
  CHECK(notes[0].find("limits.max") != std::string::npos);
  CHECK(notes[1].find("BYSTANDER FAILED: lost") != std::string::npos);
}

}  // namespace
}  // namespace mkernel::bench
