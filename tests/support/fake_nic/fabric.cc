#include "tests/support/fake_nic/fabric.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/support/fake_nic/hosts.h"
#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

ibv_gid link_local_gid(std::uint8_t device, std::uint8_t port) {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[8] = 2;
  gid.raw[14] = device;
  gid.raw[15] = port;
  return gid;
}

/// What the kernel fills in for a network interface with one IPv4 address; of an EFA and of InfiniBand there
/// is one GID.
std::vector<GidSettings> usual_gids(const DeviceSettings& settings, std::uint8_t link_layer,
                                    std::uint8_t device, std::uint8_t port) {
  const ibv_gid local = link_local_gid(device, port);
  if (settings.efa || link_layer == IBV_LINK_LAYER_INFINIBAND) return {{local, IBV_GID_TYPE_IB}};
  const ibv_gid routed = ipv4_gid(10, 0, device, port);
  return {{local, IBV_GID_TYPE_ROCE_V1},
          {local, IBV_GID_TYPE_ROCE_V2},
          {routed, IBV_GID_TYPE_ROCE_V1},
          {routed, IBV_GID_TYPE_ROCE_V2}};
}

ibv_async_event port_event(std::uint8_t port, ibv_event_type type) {
  ibv_async_event event{};
  event.element.port_num = port;
  event.event_type = type;
  return event;
}

}  // namespace

ibv_gid ipv4_gid(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = a;
  gid.raw[13] = b;
  gid.raw[14] = c;
  gid.raw[15] = d;
  return gid;
}

Device& Fabric::State::device(const std::string& name) {
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const auto& device) { return device->settings.name == name; });
  if (found == devices.end()) std::abort();  // a test's typing error
  return **found;
}

Time Fabric::State::travel(const Device* from, const Device* to) {
  const Path& way = path(from, to);
  auto takes = way.latency;
  if (way.jitter.count() > 0) {
    takes += std::chrono::microseconds(random() % static_cast<std::uint64_t>(way.jitter.count() + 1));
  }
  return Clock::now() + takes;
}

Fabric::Fabric(std::uint64_t seed) : state_(std::make_unique<State>(seed)) {}

Fabric::~Fabric() {
  for (const auto& host : state_->hosts) give_back_slot(*host);
}

void Fabric::add_device(const std::string& host, const DeviceSettings& settings) {
  const std::lock_guard held(state_->lock);
  auto device = std::make_unique<Device>();
  device->fabric = state_.get();
  device->settings = settings;
  device->node_type = IBV_NODE_CA;
  device->transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device->name, settings.name.c_str(), sizeof(device->name) - 1);
  std::strncpy(device->dev_name, "uverbs0", sizeof(device->dev_name) - 1);
  const auto number = static_cast<std::uint8_t>(state_->devices.size() + 1);
  std::uint8_t port_number = 0;
  for (PortSettings& port : device->settings.ports) {
    ++port_number;
    if (settings.efa) port.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    if (port.lid == 0) port.lid = static_cast<std::uint16_t>(number * 16 + port_number);
    if (port.gids.empty()) port.gids = usual_gids(settings, port.link_layer, number, port_number);
  }
  auto found = std::find_if(state_->hosts.begin(), state_->hosts.end(),
                            [&](const auto& known) { return known->name == host; });
  if (found == state_->hosts.end()) {
    state_->hosts.push_back(std::make_unique<Host>(Host{host, 0, {}}));
    found = state_->hosts.end() - 1;
    take_slot(**found);
  }
  (*found)->devices.push_back(device.get());
  state_->devices.push_back(std::move(device));
}

transport::rdma::VerbsLibrary Fabric::verbs(const std::string& host) {
  const std::lock_guard held(state_->lock);
  const auto found = std::find_if(state_->hosts.begin(), state_->hosts.end(),
                                  [&](const auto& known) { return known->name == host; });
  if (found == state_->hosts.end()) std::abort();  // a test's typing error
  return table(**found);
}

transport::rdma::EfaLibrary Fabric::efa() const {
  transport::rdma::EfaLibrary efa;
  fill_efa_calls(efa);
  return efa;
}

void Fabric::set_path(const std::string& from, const std::string& to, const Path& path) {
  const std::lock_guard held(state_->lock);
  state_->paths[{&state_->device(from), &state_->device(to)}] = path;
}

void Fabric::set_paths(const std::string& one, const std::string& other, const Path& path) {
  set_path(one, other, path);
  set_path(other, one, path);
}

void Fabric::every_path(const Path& path) {
  const std::lock_guard held(state_->lock);
  state_->paths.clear();
  state_->default_path = path;
}

void Fabric::set_port(const std::string& name, std::uint8_t port, ibv_port_state state) {
  const std::lock_guard held(state_->lock);
  Device& device = state_->device(name);
  device.settings.ports.at(port - 1U).state = state;
  raise(device, port_event(port, state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR));
}

void Fabric::set_gids(const std::string& name, std::uint8_t port, std::vector<GidSettings> gids) {
  const std::lock_guard held(state_->lock);
  Device& device = state_->device(name);
  device.settings.ports.at(port - 1U).gids = std::move(gids);
  raise(device, port_event(port, IBV_EVENT_GID_CHANGE));
}

void Fabric::fail_device(const std::string& name) {
  const std::lock_guard held(state_->lock);
  Device& device = state_->device(name);
  device.dead = true;
  raise(device, port_event(0, IBV_EVENT_DEVICE_FATAL));
}

void Fabric::fail_registrations(const std::string& name, int error, std::uint32_t count) {
  const std::lock_guard held(state_->lock);
  Device& device = state_->device(name);
  device.registration_error = error;
  device.registration_failures = count;
}

std::vector<std::string> Fabric::complaints() const {
  const std::lock_guard held(state_->lock);
  std::vector<std::string> all = state_->complaints;
  for (const auto& device : state_->devices) {
    for (const Context* const context : device->contexts) {
      all.push_back(device->settings.name + " is still open");
      for (const std::string& object : context->alive) {
        all.push_back(device->settings.name + ": " + object + " lives");
      }
    }
  }
  return all;
}

std::uint64_t Fabric::received(const std::string& device) const {
  const std::lock_guard held(state_->lock);
  return state_->device(device).received;
}

void Fabric::hold_registrations(const std::string& name, std::uint64_t bytes) {
  const std::lock_guard held(state_->lock);
  state_->device(name).held_bytes = bytes;
  state_->changed.notify_all();
}

void Fabric::void_keys(const std::string& name) {
  const std::lock_guard held(state_->lock);
  state_->device(name).keys.clear();
}

std::uint64_t Fabric::queue_pairs(const std::string& device) const {
  const std::lock_guard held(state_->lock);
  return state_->device(device).queue_pairs;
}

std::uint64_t Fabric::registered(const std::string& device) const {
  const std::lock_guard held(state_->lock);
  return state_->device(device).pinned_bytes;
}

}  // namespace mkernel::test::nic
