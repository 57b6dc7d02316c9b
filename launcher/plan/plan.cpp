#include "launcher/plan/plan.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "agent/notify/kubeflow_status.h"
#include "launcher/cli/text.h"
#include "launcher/machine/accelerators.h"
#include "launcher/plan/device_count.h"
#include "launcher/plan/job_nodes.h"
#include "launcher/plan/standby_options.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::cli {
namespace {

constexpr std::string_view kNoFiles = "/dev/null";
constexpr int kMaxWorkersPerNode = 4096;               // more are taken for a typing error
constexpr std::chrono::seconds kDeviceCountLimit{60};  // PyTorch from a slow file server

// For this ddprun and not for one that a worker starts: that is called by another Python, and its recording and its port
// would be the same.
constexpr const char* kOwnVariables[] = {kCallersPython, "DDPRUN_RECORD", "DDPRUN_METRICS_PORT",
                                         "DDPRUN_METRICS_ADDRESS"};

const std::string* find(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

// Neither with arguments nor of the shell's syntax.
bool is_plain_word(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '/' || c == '-' || c == '+';
  });
}

// Fills a Plan step by step; each step reads the settings that belong together and may use the
// results of earlier steps. The first wrong value ends the planning and is the result.
class Planner {
 public:
  Planner(const Settings& settings, const std::vector<std::string>& command,
          const Environment& environment, const Surroundings& surroundings)
      : command_(command), environment_(environment), surroundings_(surroundings) {
    plan_.settings = settings;
    plan_.job.environment = environment;
    for (const char* const name : kOwnVariables) plan_.job.environment.erase(name);
  }

  Result<Plan> make() {
    using Step = void (Planner::*)();
    constexpr Step kSteps[] = {
        &Planner::read_line_ends,    &Planner::read_site,     &Planner::read_nodes,
        &Planner::read_group,        &Planner::read_output,   &Planner::read_events,
        &Planner::read_listeners,    &Planner::read_end,      &Planner::read_notice,
        &Planner::read_health_check, &Planner::read_placement};
    for (const Step step : kSteps) {
      (this->*step)();
      if (take_.error) return fail(*std::move(take_.error));
    }
    find_command();
    if (!take_.error) read_standby();
    if (!take_.error) read_keep_memory();
    if (take_.error) return fail(*std::move(take_.error));
    if (auto good = check_names(plan_.settings, plan_.job); !good) return fail(good.error());
    return std::move(plan_);
  }

 private:
  ResolvedOption option(OptionId id) const { return resolved(plan_.settings, id); }

  void refuse(Error error) {
    if (!take_.error) take_.error = std::move(error);
  }
  void refuse(const ResolvedOption& option, std::string_view sentence) {
    refuse(usage_error(option, sentence));
  }
  void warn(std::string sentence) { plan_.warnings.push_back(std::move(sentence)); }

  void read_line_ends() {
    for (const OptionSpec& spec : option_table()) {
      if (option(spec.id).text().ends_with('\r')) refuse(option(spec.id), "this cannot be meant");
    }
  }

  void read_site() {
    const SiteReport& site = plan_.settings.site;
    plan_.notes = site.notes;
    plan_.last_line = site.of_many;
    if (!site.of_many.empty()) warn(site.of_many);
    plan_.warnings.insert(plan_.warnings.end(), site.warnings.begin(), site.warnings.end());
    if (site.error) refuse(*site.error);
  }

  void read_nodes() {
    plan_.rendezvous = take_(read_rendezvous(plan_.settings, plan_.warnings));
    if (take_.error) return;
    const Rendezvous& rendezvous = plan_.rendezvous;
    plan_.job.nodes = take_(job_nodes(plan_.settings, rendezvous, plan_.warnings));
    if (rendezvous.max_nodes > 1) {
      plan_.job.nodes.leader.proof =
          take_(read_proof(plan_.settings, rendezvous.conf, is_in_slurm_job(environment_),
                           surroundings_.munge_library, plan_.notes));
    }
    plan_.job.store_endpoint = take_(store_endpoint(plan_.settings, rendezvous));
    const agent::StoreEndpoint& place = plan_.job.store_endpoint;
    if (auto& etcd = plan_.job.nodes.leader.etcd; etcd && place.first_port != 0) {
      etcd->ports = rdzv::PortRange{place.first_port, place.last_port};
    }
    const int store_mib = take_(read_integer(option(OptionId::kStoreMemory), 1));
    plan_.job.store_endpoint.store_memory = static_cast<std::size_t>(store_mib) << 20;
    // As under torchrun: static ignores the switch.
    const std::string* const unshared = find(environment_, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    plan_.job.store_endpoint.agent_hosts_store =
        rendezvous.backend == Backend::kStatic || unshared == nullptr || *unshared != "1";
    read_run_id();
  }

  void read_run_id() {
    const ResolvedOption run_id = option(OptionId::kRdzvId);
    plan_.job.run_id = run_id.text();
    if (plan_.rendezvous.is_standalone) {
      plan_.job.run_id = surroundings_.random_run_id;
    } else if (run_id.text().empty() && plan_.rendezvous.max_nodes > 1) {
      refuse(run_id,
             "each node would take a random one, and so no two would meet; give all nodes "
             "the same, or leave it out");
    } else if (run_id.text().empty()) {
      plan_.job.run_id = surroundings_.random_run_id;
      warn(run_id.setting.origin.name + " is empty; the run id is " + plan_.job.run_id);
    }
  }

  void read_group() {
    plan_.job.local_world_size = read_worker_count();
    plan_.job.restarts = take_(read_restart_rules(plan_.settings));
    plan_.job.role = option(OptionId::kRole).text();
    if (plan_.job.local_world_size > 1 && find(environment_, "OMP_NUM_THREADS") == nullptr) {
      warn("OMP_NUM_THREADS is not set, so each of the " +
           std::to_string(plan_.job.local_world_size) +
           " workers gets OMP_NUM_THREADS=1, as under torchrun; set it to the number of CPU "
           "threads that one worker may use");
    }
  }

  int read_worker_count() {
    const ResolvedOption workers = option(OptionId::kNprocPerNode);
    const std::string& text = workers.text();
    if (text == "cpu") return count_cpus();
    if (text == "usable-cpus") {
      const int cpus = agent::count_usable_cpus(surroundings_.machine);
      plan_.notes.push_back(std::to_string(cpus) + " CPUs that this process may use");
      return cpus;
    }
    if (text == "gpu" || text == "xpu" || text == "auto") return count_accelerators(text);
    const auto number = parse_number<long long>(text);
    if (!number) {
      refuse(workers,
             "give the number of workers on this node, or auto, cpu, usable-cpus, gpu or xpu");
      return 1;
    }
    if (*number < 1 || *number > kMaxWorkersPerNode) {
      refuse(workers, "a node has at least 1 and at most " + std::to_string(kMaxWorkersPerNode) +
                          " workers");
      return 1;
    }
    return static_cast<int>(*number);
  }

  // NVIDIA's GPUs are counted here. Of other accelerators the job's PyTorch knows which it can use, a laptop's perhaps not:
  // Python is asked. A program that Python does not run uses AMD's.
  int count_accelerators(const std::string& kind) {
    const ResolvedOption workers = option(OptionId::kNprocPerNode);
    if (kind != "xpu") {
      find_gpus();
      if (const auto gpus = static_cast<int>(visible_gpus_.size()); gpus > 0) {
        plan_.notes.push_back(std::to_string(gpus) + " visible GPUs");
        return gpus;
      }
    }
    const std::vector<std::string> amd = agent::find_amd_gpus(surroundings_.machine);
    const std::string other = agent::find_other_accelerator(surroundings_.machine);
    const bool is_found = !amd.empty() || !other.empty();
    std::string why_unknown;  // a sentence
    if (const auto python = is_found ? python_program() : std::nullopt) {
      const auto count = count_devices(*python, kind, environment_, kDeviceCountLimit);
      if (count && *count > 0) {
        plan_.notes.push_back(std::to_string(*count) + " devices, as PyTorch counts them (" +
                              python->path + ")");
        return *count;
      }
      if (!count) why_unknown = count.error().message;
    } else if (const int gpus = agent::count_visible_amd_gpus(amd, environment_);
               gpus > 0 && kind != "xpu") {
      plan_.notes.push_back(std::to_string(gpus) + " visible GPUs of AMD");
      return gpus;
    } else if (!other.empty()) {
      why_unknown = other + " is there, and only PyTorch can count such devices";
    }
    if (kind == "auto") {
      if (!why_unknown.empty()) warn(why_unknown + ": each CPU gets a worker; give the number");
      return workers.setting.origin.source == Source::kSite ? count_own_cpus() : count_cpus();
    }
    const std::string hidden_by = agent::hides_accelerators(environment_);
    refuse(workers, !why_unknown.empty() ? why_unknown + "; give the number"
                    : !hidden_by.empty() ? "no GPU is visible; " + hidden_by
                    : kind == "xpu"      ? "no GPU of Intel's was found"
                    : is_found
                        ? "PyTorch can use no GPU; python -m torch.utils.collect_env shows more"
                        : "no GPU was found; nvidia-smi shows what the driver sees");
    return 1;
  }

  // Its errors are told when the program is looked for.
  std::optional<agent::Program> python_program() {
    if (command_.empty()) return std::nullopt;
    const auto is_on = [this](OptionId id) { return read_flag(option(id)).value_or(false); };
    const auto found = find_program(
        run_as(is_on(OptionId::kModule), is_on(OptionId::kNoPython), is_on(OptionId::kRunPath)),
        command_, environment_, surroundings_.places);
    if (!found || !found->program.is_python) return std::nullopt;
    return found->program;
  }

  static RunAs run_as(bool module, bool no_python, bool run_path) {
    return run_path    ? RunAs::kRunPath
           : module    ? RunAs::kModule
           : no_python ? RunAs::kProgram
                       : RunAs::kWhatItIs;
  }

  // As torchrun since 2.12, which no longer counts CPUs that the process may not use.
  int count_cpus() {
    const auto cpus = static_cast<int>(agent::allowed_cpus(surroundings_.machine).size());
    return one_for_each(std::max(1, cpus), "that affinity allows", " CPUs");
  }

  // The CPUs that the site has given to us.
  int count_own_cpus() {
    const SiteReport& site = plan_.settings.site;
    return one_for_each(
        site.cpus.value_or(1),
        "that " + plan_.settings[OptionId::kNprocPerNode].origin.name + " gives to the job",
        " CPUs of this node are the job's, and no GPU");
  }

  int one_for_each(int cpus, const std::string& which, const std::string& note) {
    const int usable = agent::count_usable_cpus(surroundings_.machine);
    plan_.notes.push_back(std::to_string(cpus) + note);
    if (usable < cpus) {
      warn("there will be " + std::to_string(cpus) + " workers, one for each CPU " + which +
           ", but affinity or a cgroup leaves only " + std::to_string(usable) +
           "; --nproc-per-node=usable-cpus counts those");
    }
    return cpus;
  }

  // Asks the driver, which takes time: call it once, and only if GPUs matter.
  void find_gpus() {
    if (gpus_) return;
    gpus_ = agent::find_gpus(surroundings_.machine);
    visible_gpus_ = agent::visible_gpus(find(environment_, "CUDA_VISIBLE_DEVICES"), *gpus_);
  }

  void read_output() {
    agent::OutputSpec& output = plan_.job.output;
    output.log_dir = option(OptionId::kLogDir).text();
    std::tie(output.redirects, output.redirects_of) =
        take_(read_streams(option(OptionId::kRedirects)));
    std::tie(output.tee, output.tee_of) = take_(read_streams(option(OptionId::kTee)));
    output.local_ranks_filter = take_(read_ranks(option(OptionId::kLocalRanksFilter)));
    output.duplicate_stdout_filters = read_filters(option(OptionId::kDuplicateStdoutFilters));
    output.duplicate_stderr_filters = read_filters(option(OptionId::kDuplicateStderrFilters));
    const ResolvedOption prefix = option(OptionId::kLogLinePrefixTemplate);
    // The option asks for prefixed lines; this variable only changes the prefix of --tee. An empty
    // text is torchrun's default, as under torchrun.
    const bool is_for_tee = prefix.setting.origin.name == "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
    if (!prefix.text().empty() && (!is_for_tee || is_teed())) {
      output.line_prefix_template = prefix.text();
    }

    const ResolvedOption logs_specs = option(OptionId::kLogsSpecs);
    if (!logs_specs.text().empty() && logs_specs.text() != "default") {
      refuse(logs_specs, "log plug-ins are Python's; give default, or leave it out");
    }
    warn_of_output_without_effect();
  }

  bool is_teed() const {
    return plan_.job.output.tee != agent::StreamSet::kNone || !plan_.job.output.tee_of.empty();
  }

  void warn_of_output_without_effect() {
    const agent::OutputSpec& output = plan_.job.output;
    const auto warn_if = [this](OptionId id, bool has_no_effect, const std::string& why) {
      const ResolvedOption given_option = option(id);
      if (has_no_effect && !given_option.is_default()) {
        warn(given_option.setting.origin.name + " has no effect: " + why);
      }
    };
    const bool has_no_files = output.log_dir == kNoFiles;
    for (const OptionId id : {OptionId::kRedirects, OptionId::kTee, OptionId::kLocalRanksFilter}) {
      warn_if(id, has_no_files, "the log directory is /dev/null");
    }
    for (const OptionId id :
         {OptionId::kDuplicateStdoutFilters, OptionId::kDuplicateStderrFilters}) {
      warn_if(id, !is_teed(), "only teed output is filtered; give --tee");
    }
    for (const auto& [id, of_rank] : {std::pair{OptionId::kRedirects, &output.redirects_of},
                                      {OptionId::kTee, &output.tee_of}}) {
      if (!of_rank->empty() && of_rank->rbegin()->first >= plan_.job.local_world_size) {
        warn(usage_error(option(id), "there is no local rank " +
                                         std::to_string(of_rank->rbegin()->first) + " among " +
                                         std::to_string(plan_.job.local_world_size) + " workers")
                 .to_string());
      }
    }
  }

  void read_events() {
    agent::EventSpec& events = plan_.job.events;
    events.as_torchrun = take_(read_choice(option(OptionId::kEventLogHandler))) == "console";
    if (plan_.rendezvous.backend == Backend::kC10d) events.rdzv_backend = "c10d";
    const ResolvedOption target = option(OptionId::kEvents);
    const std::string_view text = target.text();
    if (text == "-") {
      events.descriptor = STDOUT_FILENO;
    } else if (text.starts_with("fd:")) {
      events.descriptor = parse_number<int>(text.substr(3));
      if (events.descriptor.value_or(-1) < 0) {
        return refuse(target, "give fd: and the number of an open descriptor, as in fd:3");
      }
    } else if (!text.empty() || target.is_default()) {
      events.file = text;
    } else {
      refuse(target, "give a file, fd:N, or - for stdout");
    }
    const ResolvedOption command = option(OptionId::kOnEvent);
    events.command = command.text();
    if (events.command.empty() && !command.is_default()) refuse(command, "give a command");
    const ResolvedOption record = option(OptionId::kRecord);
    plan_.job.record = record.text();
    if (plan_.job.record.empty() && !record.is_default()) refuse(record, "give a file");
  }

  // Where else the agent reports the job: events, metrics.
  void read_listeners() {
    read_metrics();
    if (const auto trainer = agent::trainer_endpoint(environment_)) {
      plan_.notes.push_back("Kubeflow Trainer is told of the progress at " + trainer->url + " (" +
                            trainer->url_variable + ")");
    }
    if (const std::string* const socket = find(environment_, "NOTIFY_SOCKET")) {
      plan_.notes.push_back("the service manager is told of the job at " + *socket +
                            " (NOTIFY_SOCKET)");
    }
  }

  void read_metrics() {
    const ResolvedOption port = option(OptionId::kMetricsPort);
    const ResolvedOption address = option(OptionId::kMetricsAddress);
    if (port.is_default()) {
      if (!address.is_default()) refuse(address, "give --metrics-port, too; it is the port there");
      return;
    }
    const int number = take_(read_integer(port, 0, std::numeric_limits<std::uint16_t>::max()));
    if (!rdzv::parse_numeric(address.text())) {
      refuse(address,
             "give a numeric address of this machine, 0.0.0.0 for all of its IPv4 addresses, or :: "
             "for IPv6, too");
    }
    plan_.job.metrics = {address.text(), static_cast<std::uint16_t>(number)};
    const std::string shown = number == 0 ? "a port chosen at the start, " + address.text()
                                          : "http://" + plan_.job.metrics->to_string() + "/";
    plan_.notes.push_back(
        rdzv::is_loopback(address.text())
            ? "metrics and a live page at " + shown + ", for every user of this machine"
            : "metrics at " + shown + ", for every machine that reaches this address");
  }

  void read_end() {
    agent::Job& job = plan_.job;
    job.shutdown_timeout = take_(read_seconds(option(OptionId::kShutdownTimeout), Zero::kAllowed));
    // A user who gives every stop less time does not want more for this one.
    if (const auto after_failure = option(OptionId::kFailureShutdownTimeout);
        !after_failure.text().empty()) {
      job.failure_shutdown_timeout =
          std::min(job.shutdown_timeout, take_(read_seconds(after_failure, Zero::kAllowed)));
    }
    job.kills_orphans = take_(read_flag(option(OptionId::kKillOrphans)));
    job.hangs.timeout = take_(read_hang_timeout(option(OptionId::kHangTimeout)));
    job.hangs.restarts = take_(read_choice(option(OptionId::kOnHang))) == "restart";
    job.stops_for_nan = take_(read_choice(option(OptionId::kOnNan))) == "stop";
    job.finds_slow_ranks = take_(read_choice(option(OptionId::kSlowRanks))) == "report";
    job.exit_code_as_torchrun = take_(read_choice(option(OptionId::kExitCode))) == "torchrun";
    // These have no effect, because nothing polls and no timed barrier ends a job. A wrong value is
    // still refused.
    take_(read_seconds(option(OptionId::kMonitorInterval), Zero::kRefused));
    take_(read_seconds(option(OptionId::kExitBarrierTimeout), Zero::kAllowed));
    if (const char* const name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
        !value_or_empty(environment_, name).empty()) {
      warn(std::string(name) +
           " has no effect: a worker in uninterruptible sleep is noticed when it is to be stopped "
           "and does not end even after SIGKILL (exit code 115)");
    }
    if (value_or_empty(environment_, "TORCHELASTIC_ENABLE_FILE_TIMER") == "1") {
      warn(
          "TORCHELASTIC_ENABLE_FILE_TIMER has no effect: ddprun serves no timers of "
          "torch.distributed.elastic.timer, and workers get no TORCHELASTIC_TIMER_FILE; "
          "--hang-timeout finds ranks that hang");
    }
    if (!value_or_empty(environment_, "TORCHELASTIC_HEALTH_CHECK_PORT").empty()) {
      warn(
          "TORCHELASTIC_HEALTH_CHECK_PORT has no effect: give --metrics-port, which serves "
          "/healthz and /livez");
    }
    const ResolvedOption stop = option(OptionId::kSignalsToHandle);
    job.stop_signals = take_(read_signals(stop, plan_.warnings));
    // torchrun sets this in its own environment, from which its workers inherit it.
    job.environment["TORCHELASTIC_SIGNALS_TO_HANDLE"] = stop.text();
    if (take_.error) return;

    const ResolvedOption preempt = option(OptionId::kPreemptSignal);
    if (preempt.text().empty()) return;
    const auto number = signal_number(preempt.text());
    if (number == 0 || number == SIGKILL || number == SIGSTOP) {
      return refuse(preempt, "give a signal that can be caught, such as SIGUSR1");
    }
    if (std::erase(job.stop_signals, number) > 0 && !stop.is_default()) {
      if (preempt.setting.origin.source == Source::kSite) return prefer_to_stop(number);
      return refuse(preempt, signal_name(number) + " is among " + stop.setting.origin.name +
                                 " too; it can mean one thing only");
    }
    job.preempt_signal = number;
  }

  // Which words are commands is up to the shell; but one word that is none is more likely a provider, misspelt.
  void read_notice() {
    using From = agent::NoticeSpec::From;
    const ResolvedOption notice = option(OptionId::kPreemptNotice);
    const std::string text(trimmed(notice.text()));
    if (text.empty()) return;
    for (const From provider : {From::kAws, From::kGcp, From::kAzure}) {
      plan_.job.preempt_notice = {provider};
      if (text == plan_.job.preempt_notice.name()) return;
    }
    plan_.job.preempt_notice = {From::kCommand, text};
    check_command(notice, text, "give aws, gcp, azure, or a command; ");
  }

  void read_health_check() {
    const ResolvedOption check = option(OptionId::kHealthCheck);
    const std::string text(trimmed(check.text()));
    if (text.empty() && !check.is_default()) return refuse(check, "give auto, or a command");
    plan_.job.health_check = text;
    if (!text.empty() && text != "auto") check_command(check, text, "give auto, or a command; ");
  }

  void check_command(const ResolvedOption& option, const std::string& text,
                     const std::string& what_to_give) {
    if (!is_plain_word(text) ||
        find_executable(text, surroundings_.places.directory, environment_)) {
      return;
    }
    refuse(option,
           what_to_give + text +
               (text.find('/') == std::string::npos ? " is no program on PATH" : " is no program"));
  }

  // The site's preempt signal is only a default: it gives way if --signals-to-handle has it.
  void prefer_to_stop(int signal) {
    plan_.job.stop_signals.push_back(signal);
    plan_.notes.push_back(signal_name(signal) + " stops the job, as " +
                          option(OptionId::kSignalsToHandle).setting.origin.name +
                          " says, and is no --preempt-signal as " + plan_.settings.site.name +
                          " proposes");
  }

  void read_placement() {
    take_(read_choice(option(OptionId::kStartMethod)));
    if (take_(read_flag(option(OptionId::kVirtualLocalRank)))) virtualize_local_ranks();
    read_debugged_ranks();
    const ResolvedOption binding = option(OptionId::kNumaBinding);
    if (binding.is_default()) return;
    const std::size_t mode = take_(read_one_of(binding, choices_of(binding.spec)));
    if (take_.error) return;
    find_gpus();
    auto cpus = agent::numa_binding(static_cast<agent::NumaMode>(mode), surroundings_.machine,
                                    *gpus_, visible_gpus_, plan_.job.local_world_size);
    if (!cpus) return refuse(binding, cpus.error().to_string());
    plan_.job.cpus_of = *std::move(cpus);
  }

  // With several nodes the number of ranks is known only after the rendezvous.
  void read_debugged_ranks() {
    const ResolvedOption debugged = option(OptionId::kAttachDebugger);
    plan_.job.debugged_ranks = take_(read_ranks(debugged));
    if (!plan_.job.nodes.is_alone()) return;
    for (const int rank : plan_.job.debugged_ranks) {
      if (rank < plan_.job.local_world_size) continue;
      refuse(debugged, "there is no rank " + std::to_string(rank) + " among " +
                           std::to_string(plan_.job.local_world_size) + " workers");
    }
  }

  void virtualize_local_ranks() {
    // ROCm's own variable goes before the one that it shares with CUDA.
    const std::string* const hip = find(environment_, "HIP_VISIBLE_DEVICES");
    const bool is_hip = hip != nullptr && !hip->empty();
    const std::string name = is_hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
    const std::string* const all = find(environment_, name);
    const auto workers = static_cast<std::size_t>(plan_.job.local_world_size);
    std::vector<std::string>& devices = plan_.job.visible_devices_of;
    if (all == nullptr) {
      for (std::size_t i = 0; i < workers; ++i) devices.push_back(std::to_string(i));
      return;
    }
    const std::vector<std::string_view> entries = split(*all, ',');
    if (entries.size() < workers) {
      return refuse(option(OptionId::kVirtualLocalRank), "each of the " + std::to_string(workers) +
                                                             " workers needs an entry of " + name +
                                                             ", which is '" + *all + "'");
    }
    for (std::size_t i = 0; i < workers; ++i) devices.emplace_back(trimmed(entries[i]));
  }

  void find_command() {
    const bool module = take_(read_flag(option(OptionId::kModule)));
    const bool no_python = take_(read_flag(option(OptionId::kNoPython)));
    const bool run_path = take_(read_flag(option(OptionId::kRunPath)));
    if (take_.error) return;
    if (command_.empty()) {
      return refuse({ErrorCode::kInvalidArgument,
                     "no program was given; for example: ddprun --nproc-per-node=2 train.py",
                     {}});
    }
    if (module && no_python && !run_path) {
      return refuse(option(OptionId::kNoPython), "a module (" +
                                                     option(OptionId::kModule).setting.origin.name +
                                                     ") needs Python; leave one of the two out");
    }
    FoundProgram found = take_(find_program(run_as(module, no_python, run_path), command_,
                                            environment_, surroundings_.places));
    plan_.job.program = std::move(found.program);
    plan_.notes.push_back((module ? "module " : "program ") + plan_.job.program.name +
                          (module ? ": " : " found ") + found.how);
    if (!found.warning.empty()) warn(std::move(found.warning));
    note_own_options();
    warn_of_doubled_dollars();
    add_local_rank();
  }

  void add_local_rank() {
    const bool is_wanted = take_(read_flag(option(OptionId::kLocalRankArg)));
    if (!is_wanted || take_(read_flag(option(OptionId::kUseEnv)))) return;
    agent::Program& program = plan_.job.program;
    const std::size_t after_script = program.first_user_argument + (program.is_python ? 1 : 0);
    program.argv.insert(program.argv.begin() + static_cast<std::ptrdiff_t>(after_script),
                        "--local-rank=${local_rank}");
  }

  // They may be the program's, too.
  void note_own_options() {
    std::vector<std::string> own;
    for (std::size_t i = 1; i < command_.size() && command_[i] != "--"; ++i) {
      const std::string_view word = std::string_view(command_[i]).substr(0, command_[i].find('='));
      if (word.starts_with("--") && cli::find_option(word.substr(2)) != nullptr) {
        own.emplace_back(word);
      }
    }
    if (own.empty()) return;
    plan_.notes.push_back(joined(own) + (own.size() == 1 ? " goes" : " go") +
                          " to the program: ddprun's own options stand before it");
  }

  void read_standby() {
    plan_.job.standbys = take_(read_standbys(plan_.settings, plan_.job, surroundings_.machine));
    const std::string& why_none = plan_.job.standbys.why_none;
    const ResolvedOption preload = option(OptionId::kPreload);
    if (why_none.empty() && !preload.text().empty() && plan_.job.standbys.modules.empty()) {
      warn(preload.setting.origin.name + " has no effect: " +
           (plan_.job.standbys.wanted == 0 ? "no --standby is given"
                                           : "the program is not run by Python"));
    }
    if (why_none.empty()) return;
    warn(option(OptionId::kStandby).setting.origin.name + " has no effect: " + why_none);
  }

  void read_keep_memory() {
    const ResolvedOption keep = option(OptionId::kKeepMemory);
    const auto time = take_(read_seconds(keep, Zero::kAllowed));
    if (take_.error || time.count() == 0) return;
    const ResolvedOption run_id = option(OptionId::kRdzvId);
    if (plan_.rendezvous.is_standalone || run_id.is_default() || run_id.text().empty()) {
      return refuse(keep,
                    "the next ddprun finds the memory by the job's name; give an --rdzv-id" +
                        std::string(plan_.rendezvous.is_standalone ? ", and no --standalone" : ""));
    }
    std::string why = why_nothing_outlives(environment_);
    if (why.empty() && surroundings_.is_first_process) {
      why = "ddprun is process 1 here, and all other processes end with it";
    }
    if (!why.empty()) {
      return warn(keep.setting.origin.name + " has no effect: " + why +
                  ", so no memory can outlive it");
    }
    plan_.job.keep_memory = {time, identity_of(plan_.job.program, surroundings_.places.directory)};
  }

  // torchrun's macros turn "$$" into "$", which surprises users who mean the shell's $$.
  void warn_of_doubled_dollars() {
    const agent::Program& program = plan_.job.program;
    for (std::size_t i = program.first_user_argument; i < program.argv.size(); ++i) {
      if (program.argv[i].find("$$") == std::string::npos) continue;
      warn("'$$' in the argument '" + program.argv[i] +
           "' becomes '$', as under torchrun; write '$$$$' for two");
      return;
    }
  }

  const std::vector<std::string>& command_;
  const Environment& environment_;
  const Surroundings& surroundings_;
  std::optional<std::vector<agent::Gpu>> gpus_;  // none: not asked for yet
  std::vector<int> visible_gpus_;
  Taking take_;
  Plan plan_;
};

Result<void> prepare_log_dir(const Plan& plan) {
  const std::string& directory = plan.job.output.log_dir;
  if (directory.empty() || directory == kNoFiles) return {};
  const auto unusable = [&](int error_number) {
    return refused(
        resolved(plan.settings, OptionId::kLogDir),
        "log files cannot be written there: " + std::string(std::strerror(error_number)));
  };
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return unusable(error.value());
  // Permission bits do not show read-only and pseudo file systems; making a file does, and a file
  // without a name costs a tenth of making a folder.
  const rdzv::UniqueFd nameless(::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (nameless) return {};
  if (errno != EOPNOTSUPP && errno != EISDIR)
    return unusable(errno);  // else: not supported by this file system
  std::string probe = directory + "/.ddprun_XXXXXX";
  if (::mkdtemp(probe.data()) == nullptr) return unusable(errno);
  ::rmdir(probe.c_str());
  return {};
}

Result<void> try_to_append(const ResolvedOption& target, const std::string& path) {
  if (path.empty()) return {};
  // O_NONBLOCK: do not wait for the reader of a FIFO.
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (file < 0 && errno != ENXIO) {
    return refused(target, "it cannot be written: " + std::string(std::strerror(errno)));
  }
  if (file >= 0) ::close(file);
  return {};
}

}  // namespace

Result<Plan> make_plan(const Settings& settings, const std::vector<std::string>& command,
                       const Environment& environment, const Surroundings& surroundings) {
  return Planner(settings, command, environment, surroundings).make();
}

Result<void> prepare_outputs(const Plan& plan) {
  if (auto prepared = prepare_log_dir(plan); !prepared) return prepared;
  const agent::EventSpec& events = plan.job.events;
  const ResolvedOption target = resolved(plan.settings, OptionId::kEvents);
  if (events.descriptor) {
    const int flags = ::fcntl(*events.descriptor, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) {
      return refused(
          target, "descriptor " + std::to_string(*events.descriptor) + " is not open for writing");
    }
  }
  if (auto tried = try_to_append(target, events.file); !tried) return tried;
  return try_to_append(resolved(plan.settings, OptionId::kRecord), plan.job.record);
}

}  // namespace ddprun::cli
