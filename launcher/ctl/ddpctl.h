// ddpctl's commands: what the command line says about each, and the function that runs it and
// returns the exit code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/common/limits.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

int run_ddpctl(int argc, char** argv);

// Prints what is wrong as one sentence on stderr; returns `code`.
int report(const std::string& sentence, int code);
inline int report(const Error& error, int code) { return report(error.to_string(), code); }

struct StatusArguments {
  std::string job;
  bool as_json = false;
  bool watches = false;
  bool shows_all = false;
  double interval_s = 1;
};
int show_status(const StatusArguments& arguments);

struct LogsArguments {
  std::string job;
  std::vector<int> ranks;
  int lines = 20;
  bool follows = false;
  bool is_raw = false;
};
int print_logs(const LogsArguments& arguments);

struct StacksArguments {
  std::string job;
  std::vector<int> ranks;
  bool shows_all = false;
  bool as_json = false;
};
int print_stacks(const StacksArguments& arguments);

struct EventsArguments {
  std::string job;
  bool follows = false;
};
int print_events(const EventsArguments& arguments);

struct StopArguments {
  std::string job;
  bool waits_not = false;
};
int stop_job(const StopArguments& arguments);
int restart_job(const StopArguments& arguments);

struct ReplaceArguments : StopArguments {
  int rank = 0;
};
int replace_worker(const ReplaceArguments& arguments);

struct DrainArguments : StopArguments {
  std::string node;
  bool is_at_once = false;
};
int drain_node(const DrainArguments& arguments);
int undrain_node(const DrainArguments& arguments);

struct ForgetArguments {
  std::string job;
};
int forget_memory(const ForgetArguments& arguments);

struct StoreArguments {
  std::string command;  // "get", …; empty: serve
  std::string server;
  std::string key;
  std::string value;
  std::vector<std::string> keys;
  std::int64_t delta = 1;
  double timeout_s = 10;
  double wait_s = 0;
  std::string listen;
  std::size_t memory_mib = rdzv::limits::kDefaultStoreMemory >> 20;
};
int use_store(const StoreArguments& arguments);

struct ReplayArguments {
  std::string file;
};
int replay(const ReplayArguments& arguments);

struct DoctorArguments {
  std::vector<std::string> names;
  std::string worker;
  double timeout_s = 60;
  bool as_json = false;
};
int diagnose(const DoctorArguments& arguments);

}  // namespace ddprun::cli
