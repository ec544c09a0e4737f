#include "daemon/app/nic_watch.h"

#include <condition_variable>
#include <utility>

#include "proto/base/mutex.h"

namespace mkernel::app {
namespace {

void fill(const topology::RdmaPort& from, topology::AddressFamily family, v1::NicPort& to) {
  to.set_state(from.state);
  to.set_link_layer(topology::name_of(from.link_layer));
  to.set_mtu(from.mtu);
  to.set_gbps(from.gbps);
  if (const topology::Gid* gid = topology::choose_gid(from, family)) {
    to.set_gid(gid->text());
    to.set_gid_type(topology::name_of(gid->type));
  }
}

}  // namespace

std::vector<v1::NicPort> describe_ports(const std::vector<std::string>& names,
                                        const std::vector<topology::RdmaDevice>& devices,
                                        topology::AddressFamily family) {
  std::vector<v1::NicPort> ports(names.size());
  for (std::size_t rail = 0; rail < names.size(); ++rail) {
    ports[rail].set_rail(static_cast<std::uint32_t>(rail));
    ports[rail].set_name(names[rail]);
    ports[rail].set_state("absent");
    for (const topology::RdmaDevice& device : devices) {
      for (const topology::RdmaPort& port : device.ports) {
        if (topology::port_name(device.name, port.number) == names[rail]) fill(port, family, ports[rail]);
      }
    }
  }
  return ports;
}

NicWatch::NicWatch(Look look, std::chrono::milliseconds every, Told told)
    : look_(std::move(look)),
      told_(std::move(told)),
      thread_([this, every](const std::stop_token& stop) { run(stop, every); }) {}

void NicWatch::run(const std::stop_token& stop, std::chrono::milliseconds every) const {
  Mutex mutex;                         // guards nothing: a wait needs one
  std::condition_variable_any nobody;  // only the stop ends a wait early
  while (!stop.stop_requested()) {
    told_(look_());
    MutexLock lock(mutex);
    nobody.wait_for(lock, stop, every, [] { return false; });
  }
}

}  // namespace mkernel::app
