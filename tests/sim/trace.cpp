#include "tests/sim/trace.h"

#include <cxxabi.h>

#include <cstdlib>
#include <typeinfo>

namespace ddprun::sim {
namespace {

// The type's name as in the code.
template <typename T>
std::string type_name() {
  int status = 0;
  char* demangled = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : typeid(T).name();
  std::free(demangled);
  return name.substr(name.rfind(':') + 1);
}

template <typename T>
std::string in_words(const T& value) {
  std::string text = type_name<T>();
  if constexpr (requires { value.round; }) text += " " + to_string(value.round);
  if constexpr (requires { value.local_rank; }) {
    text += " local rank " + std::to_string(value.local_rank);
  }
  if constexpr (requires { value.signal; }) text += " " + signal_name(value.signal);
  if constexpr (requires { value.failure->status; }) {
    if constexpr (requires { value.failure.has_value(); }) {
      text += value.failure ? " " + value.failure->status.to_string() : " exit code 0";
    }
  }
  if constexpr (requires { value.sentence; }) text += " '" + value.sentence + "'";
  if constexpr (requires { value.outcome.exit_code; }) {
    text += " " + std::to_string(value.outcome.exit_code) + " '" + value.outcome.sentence + "'";
  }
  return text;
}

std::string in_words(const rdzv::RoundStart& start) {
  return "RoundStart " + to_string(start.round) + ": node " + std::to_string(start.node_rank) +
         " of " + std::to_string(start.node_count) + ", restarts " + std::to_string(start.restarts);
}
std::string in_words(const agent::StartWorkers& action) {
  return "StartWorkers " + to_string(action.start.round);
}
std::string in_words(const agent::TellLeader& action) {
  return "TellLeader: " + name_of(action.message);
}

template <typename Variant>
std::string name_of_any(const Variant& variant) {
  return std::visit([](const auto& value) { return in_words(value); }, variant);
}

}  // namespace

std::string name_of(const rdzv::ToLeader& message) { return name_of_any(message); }
std::string name_of(const rdzv::ToAgent& message) { return name_of_any(message); }
std::string name_of(const agent::NodeEvent& event) { return name_of_any(event); }
std::string name_of(const agent::NodeAction& action) { return name_of_any(action); }

std::string name_of(const Fault& fault) {
  constexpr std::string_view kNames[] = {"worker dies",   "agent killed",    "power lost",
                                         "paused",        "connection lost", "partition",
                                         "stop signal",   "preempt signal",  "leader killed",
                                         "restart asked", "stop asked",      "stuck"};
  return std::string(kNames[static_cast<std::size_t>(fault.kind)]) + ", slot " +
         std::to_string(fault.slot);
}

}  // namespace ddprun::sim
