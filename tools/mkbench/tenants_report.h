// The figures of `mkbench tenants`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace mkernel::bench {

/// What a bystander saw in all turns under one condition.
struct TenantSamples {
  std::vector<double> signal_us;          ///< of every signal
  std::vector<double> answer_us;          ///< of every request to the control thread
  std::vector<double> gbytes_per_second;  ///< of every turn
};

struct TenantCase {
  std::string attack;
  TenantSamples without, with;
  std::uint64_t attack_rounds = 0;
  std::string refused;  ///< the last word of the daemons to the attacker; empty: it was refused nothing
  std::string failed;   ///< why the bystander could not go on; empty: it could, and all payloads were right
};

/// The value below which `part` of the samples lie; 0 for none. `samples` need not be sorted.
double quantile(std::vector<double> samples, double part);

/// As recorded. `fair_gbytes_per_second`: what the bystander has beside an honest rival, where that was
/// measured.
nlohmann::json to_json(const TenantCase& measured, const std::optional<double>& fair_gbytes_per_second);
/// A heading and a row per case.
std::vector<std::vector<std::string>> tenants_table(const std::vector<TenantCase>& cases,
                                                    const std::optional<double>& fair_gbytes_per_second);

/// Below it: what attackers were refused, and bystanders that could not go on.
std::vector<std::string> tenants_notes(const std::vector<TenantCase>& cases);

}  // namespace mkernel::bench
