#include "kernels/plan/machine.h"

#include <array>
#include <cmath>
#include <cstddef>

namespace mkernel::kernels {
namespace {

constexpr std::array kMachines{kH200, kH100, kH20, kH800, kGh200, kH100Pcie, kH100Nvl, kH200Nvl};
/// Words of a name that say how a card is built. One without them is an SXM module or a superchip.
constexpr std::array<std::string_view, 2> kForms{"PCIe", "NVL"};

bool is_of_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// Whether `word` is one of the words that `text` consists of: "H200" is none of "NVIDIA GH200 480GB".
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_of_word(text[at - 1])) && (end == text.size() || !is_of_word(text[end]))) return true;
  }
  return false;
}

bool is_called(const Machine& machine, std::string_view device_name) {
  for (const std::string_view form : kForms)
    if (has_word(machine.name, form) != has_word(device_name, form)) return false;
  return has_word(device_name, machine.name.substr(0, machine.name.find(' ')));
}

}  // namespace

double push_seconds(const Machine& machine, double bytes, std::int32_t stores, std::int32_t links,
                    std::int32_t ctas) {
  return std::pow(std::pow(bytes * stores / (ctas * machine.push_bytes), 4) +
                      std::pow(bytes * links / machine.links_bulk, 4),
                  0.25);
}

Result<Machine> with_paced_links(const Machine& machine, double gbytes, const std::string& who) {
  if (!(gbytes >= 0)) {
    return Status(StatusCode::kInvalidArgument,
                  who + ": link_gbytes = " + std::to_string(gbytes) + ", must be at least 0");
  }
  Machine paced = machine;
  if (gbytes > 0) paced.links_bulk = paced.links_store = paced.paced_links = gbytes * 1e9;
  return paced;
}

Result<Machine> machine_named(std::string_view name) {
  std::string known;
  for (const Machine& machine : kMachines) {
    if (machine.name == name) return machine;
    known += (known.empty() ? "" : ", ") + std::string(machine.name);
  }
  return Status(StatusCode::kInvalidArgument,
                "machine = \"" + std::string(name) + "\", must be one of " + known);
}

Machine machine_of_device(std::string_view device_name, std::int32_t sms, double clock) {
  for (const Machine& machine : kMachines)
    if (is_called(machine, device_name)) return machine.with_sms(sms);
  Machine unknown = kUnknownMachine.with_sms(sms);
  if (clock > 0) unknown.clock = clock;
  return unknown;
}

std::string text_of(const Machine& machine) {
  std::string text = std::string(machine.name) + " sms=" + std::to_string(machine.sms);
  if (machine.name == kUnknownMachine.name)
    text += " mhz=" + std::to_string(static_cast<std::int64_t>(machine.clock / 1e6));
  return text;
}

}  // namespace mkernel::kernels
