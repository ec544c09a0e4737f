// What `mkctl doctor` has found, for people and for programs.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/mkctl/doctor/checks.h"

namespace mkernel::mkctl::doctor {

struct Report {
  Facts facts;
  std::vector<std::pair<const char*, Finding>> findings;  ///< with the check's name; the worst come first

  /// False when there is an error.
  bool good() const;
};

/// Runs every check.
Report examine(Facts facts);

/// {"node", "socket", "daemon_reached", "findings": [{"check", "severity", "what", "why", "todo"}],
/// "checked": [names]}
nlohmann::ordered_json to_json(const Report& report);

void print(std::ostream& out, const Report& report);

}  // namespace mkernel::mkctl::doctor
