#include "tools/mkctl/doctor/report.h"

#include <algorithm>
#include <ostream>

namespace mkernel::mkctl::doctor {

bool Report::good() const {
  return std::none_of(findings.begin(), findings.end(),
                      [](const auto& found) { return found.second.severity == Severity::kError; });
}

Report examine(Facts facts) {
  Report report{std::move(facts), {}};
  for (const Check& check : checks())
    for (Finding& finding : check.run(report.facts))
      report.findings.emplace_back(check.name, std::move(finding));
  std::stable_sort(report.findings.begin(), report.findings.end(),
                   [](const auto& a, const auto& b) { return a.second.severity > b.second.severity; });
  return report;
}

nlohmann::ordered_json to_json(const Report& report) {
  nlohmann::ordered_json json = {{"node", report.facts.daemon.node},
                                 {"socket", report.facts.daemon.socket},
                                 {"daemon_reached", report.facts.daemon.reached()},
                                 {"findings", nlohmann::ordered_json::array()},
                                 {"checked", nlohmann::ordered_json::array()}};
  for (const auto& [check, finding] : report.findings)
    json["findings"].push_back({{"check", check},
                                {"severity", name_of(finding.severity)},
                                {"what", finding.what},
                                {"why", finding.why},
                                {"todo", finding.todo}});
  for (const Check& check : checks()) json["checked"].push_back(check.name);
  return json;
}

void print(std::ostream& out, const Report& report) {
  const Daemon& daemon = report.facts.daemon;
  if (daemon.reached())
    out << "# mkerneld on " << daemon.node << ", pid " << daemon.pid << ", " << daemon.socket << "\n";
  std::string well;
  for (const Check& check : checks()) {
    const bool found = std::any_of(report.findings.begin(), report.findings.end(), [&](const auto& finding) {
      return finding.first == std::string_view(check.name);
    });
    if (!found) well += (well.empty() ? "" : ", ") + std::string(check.name);
  }
  for (const auto& [check, finding] : report.findings) {
    out << name_of(finding.severity) << ": " << finding.what << " [" << check << "]\n"
        << "  why it matters: " << finding.why << "\n"
        << "  what to do: " << finding.todo << "\n";
  }
  if (!well.empty()) out << "nothing found: " << well << "\n";
}

}  // namespace mkernel::mkctl::doctor
