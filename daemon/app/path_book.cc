#include "daemon/app/path_book.h"

#include <spdlog/spdlog.h>

namespace mkernel::app {
namespace {

/// "PATH: why", without saying the path twice.
std::string loss(const std::string& path, const Status& why) {
  return why.text().starts_with(path) ? why.text() : path + ": " + why.text();
}

std::vector<cluster::RailSnapshot> untold(std::uint32_t count) {
  std::vector<cluster::RailSnapshot> rails(count);
  for (std::uint32_t rail = 0; rail < count; ++rail) rails[rail].rail = rail;
  return rails;
}

}  // namespace

PathBook::Known& PathBook::known(const std::string& node) {
  Known& found = nodes_[node];
  if (found.rails.empty()) found.rails = untold(rails_);
  return found;
}

void PathBook::up(const std::string& node, base::TimePoint now) {
  down(node);
  known(node).up_since = now;
}

void PathBook::down(const std::string& node) {
  Known& here = known(node);
  here.up_since.reset();
  for (cluster::RailSnapshot& rail : here.rails) {
    rail.connected = rail.down = false;
    rail.path.clear();
  }
}

void PathBook::connected(const std::string& node, std::uint32_t rail) {
  if (rail < rails_) known(node).rails[rail].connected = true;
}

void PathBook::changed(const std::string& node, std::uint32_t rail, const std::string& path,
                       const Status& lost) {
  if (rail >= rails_) return;
  cluster::RailSnapshot& here = known(node).rails[rail];
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

std::vector<cluster::RailSnapshot> PathBook::rails(const std::string& node, base::TimePoint now) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return untold(rails_);
  std::vector<cluster::RailSnapshot> rails = found->second.rails;
  if (!found->second.up_since) return rails;
  const std::chrono::duration<double> up = now - *found->second.up_since;
  for (cluster::RailSnapshot& rail : rails) {
    if (!rail.connected) rail.waiting_seconds = up.count();
  }
  return rails;
}

std::string PathBook::problem(const std::string& node) const {
  std::string down, why;
  for (const cluster::RailSnapshot& rail : rails(node)) {
    if (!rail.down) continue;
    down += (down.empty() ? "" : ", ") + std::to_string(rail.rail);
    why = rail.last_loss;
  }
  return down.empty() ? "" : "no path to peer " + node + " on rail " + down + ": lost " + why;
}

}  // namespace mkernel::app
