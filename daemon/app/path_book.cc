#include "daemon/app/path_book.h"

#include <spdlog/spdlog.h>

namespace mkernel::app {
namespace {

/// "PATH: why", without saying the path twice.
std::string loss(const std::string& path, const Status& why) {
  return why.text().starts_with(path) ? why.text() : path + ": " + why.text();
}

}  // namespace

void PathBook::changed(const std::string& node, std::uint32_t rail, const std::string& path,
                       const Status& lost) {
  if (rail >= rails_) return;
  auto& known = nodes_[node];
  if (known.empty()) known = rails(node);
  rpc::RailSnapshot& here = known[rail];
  here.path = path;
  here.down = !lost.ok();
  if (lost.ok()) {
    spdlog::info("rail {} to node {}: puts go over {} now", rail, node, path);
    return;
  }
  ++here.paths_lost_total;
  here.last_loss = loss(path, lost);
  spdlog::warn("rail {} to node {}: lost {}; puts wait for another path", rail, node, here.last_loss);
}

void PathBook::forget(const std::string& node) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  for (rpc::RailSnapshot& rail : found->second) {
    rail.down = false;
    rail.path.clear();
  }
}

std::vector<rpc::RailSnapshot> PathBook::rails(const std::string& node) const {
  const auto found = nodes_.find(node);
  if (found != nodes_.end() && !found->second.empty()) return found->second;
  std::vector<rpc::RailSnapshot> fresh(rails_);
  for (std::uint32_t rail = 0; rail < rails_; ++rail) fresh[rail].rail = rail;
  return fresh;
}

std::string PathBook::problem(const std::string& node) const {
  std::string down, why;
  for (const rpc::RailSnapshot& rail : rails(node)) {
    if (!rail.down) continue;
    down += (down.empty() ? "" : ", ") + std::to_string(rail.rail);
    why = rail.last_loss;
  }
  return down.empty() ? "" : "no path to peer " + node + " on rail " + down + ": lost " + why;
}

}  // namespace mkernel::app
