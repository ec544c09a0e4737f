#include "tools/mkbench/tenants_report.h"

#include <algorithm>
#include <cmath>

#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

nlohmann::json samples_json(const TenantSamples& samples) {
  return {{"signals", samples.signal_us.size()},
          {"p50_us", quantile(samples.signal_us, 0.5)},
          {"p99_us", quantile(samples.signal_us, 0.99)},
          {"p999_us", quantile(samples.signal_us, 0.999)},
          {"worst_us", quantile(samples.signal_us, 1)},
          {"answers", samples.answer_us.size()},
          {"answer_p50_us", quantile(samples.answer_us, 0.5)},
          {"answer_p99_us", quantile(samples.answer_us, 0.99)},
          {"answer_worst_us", quantile(samples.answer_us, 1)},
          {"gbytes_per_second", median(samples.gbytes_per_second)},
          {"gbytes_spread", spread(samples.gbytes_per_second)}};
}

std::vector<std::string> cells(const std::string& beside, const TenantSamples& samples,
                               const std::string& share, const std::string& rounds) {
  std::vector<std::string> row{beside};
  for (const double part : {0.5, 0.99, 0.999, 1.0})
    row.push_back(fixed(quantile(samples.signal_us, part), 1));
  for (const double part : {0.5, 1.0}) row.push_back(fixed(quantile(samples.answer_us, part) / 1e3, 2));
  row.push_back(fixed(median(samples.gbytes_per_second), 3));
  row.push_back(share);
  row.push_back(rounds);
  return row;
}

}  // namespace

double quantile(std::vector<double> samples, double part) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto at = static_cast<std::size_t>(std::ceil(part * static_cast<double>(samples.size())));
  return samples[std::clamp<std::size_t>(at, 1, samples.size()) - 1];
}

nlohmann::json to_json(const TenantCase& measured, const std::optional<double>& fair) {
  const double with = median(measured.with.gbytes_per_second);
  nlohmann::json json = {
      {"attack", measured.attack},
      {"turns", measured.with.gbytes_per_second.size()},
      {"without", samples_json(measured.without)},
      {"with", samples_json(measured.with)},
      {"worst_added_ms",
       (quantile(measured.with.signal_us, 1) - quantile(measured.without.signal_us, 1)) / 1e3},
      {"answer_worst_added_ms",
       (quantile(measured.with.answer_us, 1) - quantile(measured.without.answer_us, 1)) / 1e3},
      {"of_fair_share", fair && *fair > 0 ? nlohmann::json(with / *fair) : nlohmann::json()},
      {"attack_rounds", measured.attack_rounds},
      {"refused", measured.refused},
      {"verified", measured.failed.empty()}};
  if (!measured.failed.empty()) json["failed"] = measured.failed;
  return json;
}

std::vector<std::vector<std::string>> tenants_table(const std::vector<TenantCase>& cases,
                                                    const std::optional<double>& fair) {
  std::vector<std::vector<std::string>> table{{"beside", "signal p50 us", "p99", "p99.9", "worst",
                                               "answer p50 ms", "worst", "GB/s", "of fair share", "rounds"}};
  for (const TenantCase& measured : cases) {
    const double with = median(measured.with.gbytes_per_second);
    table.push_back(cells("nobody", measured.without, "-", "-"));
    table.push_back(cells(measured.attack, measured.with,
                          fair && *fair > 0 ? fixed(100 * with / *fair, 0) + " %" : "-",
                          std::to_string(measured.attack_rounds)));
  }
  return table;
}

std::vector<std::string> tenants_notes(const std::vector<TenantCase>& cases) {
  std::vector<std::string> notes;
  for (const TenantCase& measured : cases) {
    if (!measured.failed.empty()) notes.push_back(measured.attack + ": BYSTANDER FAILED: " + measured.failed);
    if (!measured.refused.empty()) notes.push_back(measured.attack + " was refused: " + measured.refused);
  }
  return notes;
}

}  // namespace mkernel::bench
