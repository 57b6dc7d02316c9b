#include "launcher/machine/accelerators.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "launcher/machine/placement_files.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::agent {
namespace {

// A property of a node of kfd; 0: there is none.
std::uint64_t property(std::string_view properties, std::string_view key) {
  return parse_number<std::uint64_t>(field(properties, key, ' ')).value_or(0);
}

std::string name_of_amd_gpu(std::uint64_t unique_id) {
  if (unique_id == 0) return {};
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "GPU-%016llx",
                static_cast<unsigned long long>(unique_id));
  return text.data();
}

// The devices that a list of indices or names leaves, in its order.
std::vector<std::string> chosen(std::string_view list, const std::vector<std::string>& from) {
  std::vector<std::string> left;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(part.size() + 1, list.size()));
    const std::string_view entry = trimmed(part);
    const auto index = number(entry);
    const auto at = index ? from.begin() + std::min<std::ptrdiff_t>(*index, std::ssize(from))
                          : std::ranges::find(from, entry);
    if (entry.empty() || at == from.end()) break;
    left.push_back(*at);
  }
  return left;
}

std::string driver_of(const std::string& card) {
  std::error_code error;
  return std::filesystem::read_symlink(card + "/device/driver", error).filename();
}

// A card's connectors are folders beside it: card0-HDMI-A-1.
bool has_display(const std::string& root, const std::string& device) {
  const auto all = names_in(root + "/sys/class/drm");
  for (const std::string& name : names_in(root + "/sys/class/drm/" + device + "/device/drm")) {
    if (!name.starts_with("card")) continue;
    if (std::ranges::any_of(all, [&](const auto& each) { return each.starts_with(name + "-"); })) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> find_amd_gpus(const Machine& machine) {
  std::vector<std::string> gpus;
  if (!is_there(machine.root + "/dev/kfd")) return gpus;
  const std::string folder = machine.root + "/sys/class/kfd/kfd/topology/nodes/";
  std::vector<std::string> nodes = names_in(folder);
  std::ranges::sort(nodes, {}, [](const auto& name) { return number(name).value_or(-1); });
  for (const std::string& node : nodes) {
    const std::string properties = file_text(folder + node + "/properties");
    if (property(properties, "simd_count") == 0) continue;  // a processor's
    const auto minor = property(properties, "drm_render_minor");
    if (!is_there(machine.root + "/dev/dri/renderD" + std::to_string(minor))) continue;
    gpus.push_back(name_of_amd_gpu(property(properties, "unique_id")));
  }
  return gpus;
}

int count_visible_amd_gpus(const std::vector<std::string>& gpus, const Environment& environment) {
  std::vector<std::string> visible = gpus;
  if (const auto rocr = environment.find("ROCR_VISIBLE_DEVICES"); rocr != environment.end()) {
    visible = chosen(rocr->second, visible);
  }
  for (const char* const variable : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
    const auto hip = environment.find(variable);
    if (hip == environment.end()) continue;
    visible = chosen(hip->second, visible);
    break;
  }
  return static_cast<int>(visible.size());
}

std::string find_other_accelerator(const Machine& machine) {
  for (const std::string& name : names_in(machine.root + "/dev/accel")) {
    if (name.starts_with("accel")) return "/dev/accel/" + name;
  }
  for (const std::string& name : names_in(machine.root + "/dev")) {
    if (name.starts_with("accel") && number(name.substr(5))) return "/dev/" + name;
  }
  for (const std::string& name : names_in(machine.root + "/sys/class/drm")) {
    if (!name.starts_with("renderD") || !is_there(machine.root + "/dev/dri/" + name)) continue;
    const std::string driver = driver_of(machine.root + "/sys/class/drm/" + name);
    if (driver == "xe" || (driver == "i915" && !has_display(machine.root, name))) {
      return "an Intel GPU (" + driver + ", /dev/dri/" + name + ")";
    }
  }
  return {};
}

std::string hides_accelerators(const Environment& environment) {
  std::string text;
  for (const char* const variable : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
                                     "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}) {
    const auto set = environment.find(variable);
    if (set == environment.end()) continue;
    text += (text.empty() ? "" : ", ") + std::string(variable) + " is set to '" + set->second + "'";
  }
  return text;
}

}  // namespace ddprun::agent
