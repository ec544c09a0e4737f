// Plays the roles of a plan as step machines, without threads, data or fabric: who waits for which count, who
// raises it. Any order of steps must come to an end with every count where the plan says.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace mkernel::test {

/// A role: a list of steps, each blocked until its condition holds.
struct SimulatedRole {
  struct Step {
    std::function<bool()> ready;
    std::function<void()> act;
  };
  std::string name;
  std::vector<Step> steps;
  std::size_t at = 0;
};

/// Runs the roles in an order drawn from `seed` until all are through. "" or the roles that are stuck.
inline std::string simulate(std::vector<SimulatedRole>& roles, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> open(roles.size());
  for (std::size_t i = 0; i < roles.size(); ++i) open[i] = i;
  while (!open.empty()) {
    bool moved = false;
    for (std::size_t left = open.size(), turn = random() % open.size(); left > 0; --left, ++turn) {
      SimulatedRole& role = roles[open[turn % open.size()]];
      if (role.at == role.steps.size() || !role.steps[role.at].ready()) continue;
      role.steps[role.at++].act();
      moved = true;
      break;
    }
    std::erase_if(open, [&](std::size_t i) { return roles[i].at == roles[i].steps.size(); });
    if (!moved && !open.empty()) {
      std::string stuck = "stuck:";
      for (const std::size_t i : open) stuck += " " + roles[i].name + "@" + std::to_string(roles[i].at);
      return stuck;
    }
  }
  return "";
}

}  // namespace mkernel::test
