// ddpctl doctor: looks at what jobs need of this machine, and tries it. Whatever may hang is done
// in processes of its own (TimedProcess) and is given up at --timeout. A row is printed when it is
// known; the two workers, which take longest, are the last.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "agent/process/search_path.h"
#include "launcher/cli/help.h"
#include "launcher/cli/text.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/doctor/doctor_facts.h"
#include "launcher/doctor/doctor_findings.h"
#include "launcher/machine/timed_process.h"
#include "launcher/plan/program.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::cli {
namespace {

using namespace doctor;
using Clock = TimedProcess::Clock;
using std::chrono::seconds;

constexpr seconds kLookupLimit{5};
constexpr seconds kAnswerLimit{10};  // for a program to print its version
constexpr std::chrono::seconds kMemoryLimit{1};
constexpr std::size_t kAddressesMax = 16;

// Does not import torch, because that takes more than a second.
constexpr const char* kAskPython = R"(import platform
try:
    import importlib.metadata
    torch = importlib.metadata.version('torch')
except Exception:
    torch = ''
print(platform.python_version(), torch)
)";

constexpr const char* kAllReduce = R"(import datetime, torch, torch.distributed as dist
dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=600))
ones = torch.ones(1000)
dist.all_reduce(ones)
if ones.tolist() != [2.0] * 1000:
    raise SystemExit('the sum is wrong')
dist.destroy_process_group()
)";

std::string one_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

Milliseconds since(Clock::time_point began) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - began);
}

// ---- names: the process that looks one up says how long it took, then what it found, in lines

std::string look_up(const std::string& name) {
  const auto began = Clock::now();
  const auto addresses = rdzv::addresses_of(name);
  std::string text = std::to_string(since(began).count()) + "\n";
  if (!addresses) return text + "!" + one_line(addresses.error().to_string());
  for (const std::string& each : *addresses) text += each + "\n";
  return text;
}

NameFacts name_facts(const std::string& name, Result<TimedProcess>& timed,
                     Clock::time_point deadline) {
  NameFacts facts;
  facts.name = name;
  if (!timed) {
    facts.error = timed.error().to_string();
    return facts;
  }
  const TimedProcess::End end = timed->finish(deadline);
  facts.was_in_time = end.was_in_time;
  facts.took = kLookupLimit;
  if (!end.was_in_time) return facts;
  std::istringstream lines(end.output);
  std::string line;
  std::getline(lines, line);
  facts.took = Milliseconds(std::atoll(line.c_str()));
  while (std::getline(lines, line)) {
    if (line.starts_with("!")) {
      facts.error = line.substr(1);
    } else {
      facts.addresses.push_back(line);
    }
  }
  return facts;
}

std::string look_up_in_reverse(const std::string& address) {
  const auto began = Clock::now();
  name_of_address(address);
  return std::to_string(since(began).count());
}

using LookUps = std::vector<std::pair<std::string, Result<TimedProcess>>>;

// Starts a process for each, all at the same time.
LookUps look_up_all(const std::vector<std::string>& names,
                    std::string (*look_up)(const std::string&)) {
  LookUps all;
  for (const std::string& name : names) {
    all.emplace_back(name, TimedProcess::call([&] { return look_up(name); }));
  }
  return all;
}

std::vector<NameFacts> facts_of(LookUps look_ups, Clock::time_point deadline) {
  std::vector<NameFacts> facts;
  for (auto& [name, timed] : look_ups) facts.push_back(name_facts(name, timed, deadline));
  return facts;
}

// ---- two workers

// Removes variables of another job, from which ddpctl may have been started.
Environment without_job(Environment environment) {
  std::erase_if(environment, [](const auto& variable) {
    for (const char* const prefix : {"DDPRUN_", "PET_", "TORCHELASTIC_", "MASTER_"}) {
      if (variable.first.starts_with(prefix)) return true;
    }
    return variable.first == "RANK" || variable.first == "WORLD_SIZE" ||
           variable.first == "LOCAL_RANK";
  });
  environment["CUDA_VISIBLE_DEVICES"] = "";  // this trial is about the network
  return environment;
}

// The command of a worker, empty if there is none; says in the facts which, or why.
std::vector<std::string> find_worker(const DoctorArguments& arguments, const PythonFacts& python,
                                     AllReduceFacts& facts) {
  if (!arguments.worker.empty()) return {facts.by = arguments.worker};
  if (!python.torch.empty()) {
    facts.by = "Gloo of torch " + python.torch;
    return {python.path, "-c", kAllReduce};
  }
  // worker_lib's example, where ddprun was built.
  const std::string beside = own_folder() + "/collectives";
  if (::access(beside.c_str(), X_OK) == 0) {
    facts.by = "collectives";
    return {beside};
  }
  facts.missing = "no torch found; --worker names a program of your own";
  return {};
}

// The reason of a failed job: the last line of the worker that failed.
std::string reason_in(const std::string& output) {
  std::string last;
  std::string last_of_worker;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    last = text;
    if (text.starts_with("| ")) last_of_worker = text.substr(2);
  }
  return last_of_worker.empty() ? last : last_of_worker;
}

AllReduceFacts try_all_reduce(const DoctorArguments& arguments, const PythonFacts& python,
                              const Environment& environment, Clock::time_point deadline) {
  AllReduceFacts facts;
  const std::vector<std::string> worker = find_worker(arguments, python, facts);
  if (worker.empty()) return facts;
  std::vector<std::string> command{own_folder() + "/ddprun", "--standalone", "--nproc-per-node=2",
                                   "--shutdown-timeout=2", "--no-python"};
  command.insert(command.end(), worker.begin(), worker.end());
  auto timed = TimedProcess::command(command, without_job(environment));
  if (!timed) {
    facts.ended = timed.error().to_string();
    return facts;
  }
  const TimedProcess::End end = timed->finish(deadline);
  facts.was_in_time = end.was_in_time;
  facts.took = end.took;
  if (!end.status.is_success()) facts.ended = end.status.to_string();
  facts.last_lines = reason_in(end.output);
  return facts;
}

// ---- programs

PythonFacts ask_python(const Environment& environment, Clock::time_point deadline) {
  PythonFacts facts;
  const auto python = find_python(environment, environment_bin());
  if (!python) return facts;
  facts.path = python->path;
  auto timed = TimedProcess::command({python->path, "-c", kAskPython}, environment);
  if (!timed) return facts;
  const TimedProcess::End end = timed->finish(std::min(deadline, Clock::now() + kAnswerLimit));
  if (end.was_in_time && end.status.is_success()) {
    std::istringstream(end.output) >> facts.version >> facts.torch;
  }
  return facts;
}

ProgramFacts ask_ddprun(const Environment& environment, Clock::time_point deadline) {
  ProgramFacts facts;
  facts.own_version = one_line(version_text("ddprun"));
  facts.path = agent::find_in_path(value_or_empty(environment, "PATH"), "ddprun");
  if (facts.path.empty()) return facts;
  auto timed = TimedProcess::command({facts.path, "--version"}, environment);
  if (!timed) return facts;
  const TimedProcess::End end = timed->finish(std::min(deadline, Clock::now() + kAnswerLimit));
  facts.version = end.was_in_time ? one_line(end.output) : "it does not answer";
  return facts;
}

// ---- what jobs have left

std::vector<KeptMemoryFacts> kept_memory_facts() {
  std::vector<KeptMemoryFacts> facts;
  for (const agent::KeptMemory& each : memories_of("", kMemoryLimit)) {
    if (each.is_in_use) continue;
    facts.push_back({each.owner.job, each.bytes, std::chrono::ceil<std::chrono::seconds>(each.left),
                     each.is_silent});
  }
  return facts;
}

// ---- all of it

constexpr std::size_t kLongestName = std::string_view("reverse look-up").size();

// Prints each row when it is known.
class Rows {
 public:
  Rows(const DoctorArguments& arguments, const std::string& version)
      : is_alone_(arguments.names.empty()), prints_(!arguments.as_json) {
    for (const std::string& name : arguments.names) {
      name_width_ = std::max(name_width_, judge_other_name({.name = name}).name.size());
    }
    print(version + "\n\n");
  }
  void add(Finding finding) {
    if (is_alone_) finding = on_one_node(std::move(finding));
    print(to_row(finding, name_width_));
    findings_.push_back(std::move(finding));
  }
  void end() const { print("\n" + last_line(findings_)); }
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  void print(const std::string& text) const {
    if (!prints_) return;
    std::fputs(printable_lines(text).c_str(), stdout);
    std::fflush(stdout);
  }

  bool is_alone_;
  bool prints_;
  std::size_t name_width_ = kLongestName;
  std::vector<Finding> findings_;
};

void examine(const DoctorArguments& arguments, const Environment& environment, Rows& rows) {
  const auto began = Clock::now();
  const auto deadline = began + Milliseconds(static_cast<std::int64_t>(arguments.timeout_s * 1000));
  const auto names_deadline = std::min(deadline, began + kLookupLimit);
  const std::int64_t wall_ahead_before = wall_ahead_ns();

  LookUps own_name = look_up_all({own_host_name()}, look_up);
  LookUps other_names = look_up_all(arguments.names, look_up);
  std::vector<std::string> addresses = own_addresses();
  addresses.resize(std::min(addresses.size(), kAddressesMax));
  LookUps reverse = look_up_all(addresses, look_up_in_reverse);

  rows.add(judge_ddprun(ask_ddprun(environment, deadline)));
  rows.add(judge_kernel(kernel_release()));
  rows.add(judge_glibc(glibc_version()));
  const PythonFacts python = ask_python(environment, deadline);
  rows.add(judge_python(python));
  rows.add(judge_ports(read_ports()));

  agent::Machine machine;
  machine.nvml_library.clear();  // asking it would start the driver
  const CpuFacts cpus{agent::count_cpus(machine), agent::count_usable_cpus(machine),
                      agent::cpu_quota(machine)};
  const Limits limits = read_limits();
  rows.add(judge_gpus(read_gpus(machine, environment)));
  rows.add(judge_shared_memory(read_shared_memory()));
  rows.add(judge_open_files(limits.open_files_soft, limits.open_files_hard));
  rows.add(judge_processes(limits.processes, cpus.online));
  rows.add(judge_locked_memory(limits.locked_memory, has_rdma()));
  rows.add(judge_cpus(cpus));
  rows.add(judge_memory(read_memory_use(), available_memory()));
  rows.add(judge_tasks(read_task_use()));
  rows.add(judge_kept_memory(kept_memory_facts()));
  rows.add(judge_own_name(facts_of(std::move(own_name), names_deadline)[0]));
  for (const NameFacts& facts : facts_of(std::move(other_names), names_deadline)) {
    rows.add(judge_other_name(facts));
  }
  rows.add(judge_reverse(facts_of(std::move(reverse), names_deadline)));
  rows.add(judge_clock(read_clock(wall_ahead_before)));
  // Before the workers, which would make it slow.
  rows.add(judge_store(try_store()));
  rows.add(judge_all_reduce(try_all_reduce(arguments, python, environment, deadline)));
}

}  // namespace

int diagnose(const DoctorArguments& arguments) {
  const std::string version = one_line(version_text("ddprun"));
  Rows rows(arguments, version);
  examine(arguments, environment_from(environ), rows);
  rows.end();
  if (arguments.as_json) {
    std::fputs(printable_lines(to_json(version, rows.findings())).c_str(), stdout);
  }
  return count_to_look_at(rows.findings()) == 0 ? 0 : 1;
}

}  // namespace ddprun::cli
