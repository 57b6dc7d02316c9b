#include "launcher/plan.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "launcher/values.h"

namespace ddprun::cli {
namespace {

const std::string* find(const Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

// Fills a Plan step by step; each step reads the settings that belong together.
class Planner {
 public:
  Planner(const Settings& settings, const Environment& environment,
          const Surroundings& surroundings)
      : environment_(environment), surroundings_(surroundings) {
    plan_.settings = settings;
    plan_.job.environment = environment;
  }

  Result<Plan> make(const std::vector<std::string>& command) {
    for (const auto step : {&Planner::read_group, &Planner::read_output}) {
      if (const Result<void> done = (this->*step)(); !done) return fail(done.error());
    }
    if (const auto done = find_command(command); !done) return fail(done.error());
    return std::move(plan_);
  }

 private:
  const Setting& setting(OptionId id) const { return plan_.settings[id]; }

  Result<void> read_group() {
    const auto workers = read_worker_count();
    if (!workers) return fail(workers.error());
    plan_.job.local_world_size = *workers;

    const auto restarts =
        read_integer(spec_of(OptionId::kMaxRestarts), setting(OptionId::kMaxRestarts), 0);
    if (!restarts) return fail(restarts.error());
    plan_.job.max_restarts = *restarts;

    const auto standalone =
        read_flag(spec_of(OptionId::kStandalone), setting(OptionId::kStandalone));
    if (!standalone) return fail(standalone.error());
    if (*standalone) plan_.job.run_id = surroundings_.random_run_id;
    return {};
  }

  Result<int> read_worker_count() {
    const OptionSpec& spec = spec_of(OptionId::kNprocPerNode);
    const Setting& given = setting(OptionId::kNprocPerNode);
    if (given.text == "cpu") return cpu_count();
    if (given.text == "gpu" || given.text == "auto") {
      const int gpus = count_visible_gpus(find(environment_, "CUDA_VISIBLE_DEVICES"),
                                          agent::find_gpus(surroundings_.machine));
      if (gpus > 0) {
        plan_.notes.push_back(std::to_string(gpus) + " visible GPUs");
        return gpus;
      }
      if (given.text == "auto") return cpu_count();
      return fail(wrong(spec, given,
                        std::string("no GPU was found") +
                            (find(environment_, "CUDA_VISIBLE_DEVICES") == nullptr
                                 ? "; nvidia-smi shows what the driver sees"
                                 : "; CUDA_VISIBLE_DEVICES is set to '" +
                                       *find(environment_, "CUDA_VISIBLE_DEVICES") + "'")));
    }
    const auto number = whole_number(given.text);
    if (!number) {
      return fail(
          wrong(spec, given, "give the number of workers on this node, or auto, cpu or gpu"));
    }
    if (*number < 1 || *number > kMaxWorkersPerNode) {
      return fail(wrong(
          spec, given,
          "a node has at least 1 and at most " + std::to_string(kMaxWorkersPerNode) + " workers"));
    }
    return static_cast<int>(*number);
  }

  int cpu_count() {
    const int cpus = agent::count_cpus(surroundings_.machine);
    plan_.notes.push_back(std::to_string(cpus) + " CPUs");
    return cpus;
  }

  Result<void> read_output() {
    agent::OutputSpec& output = plan_.job.output;
    const Setting& log_dir = setting(OptionId::kLogDir);
    if (log_dir.text.empty() && !log_dir.is_default()) {
      return fail(wrong(spec_of(OptionId::kLogDir), log_dir, "give a folder for log files"));
    }
    output.log_dir = log_dir.text;
    const auto redirects =
        read_streams(spec_of(OptionId::kRedirects), setting(OptionId::kRedirects));
    if (!redirects) return fail(redirects.error());
    output.redirects = redirects->all;
    output.redirects_of = redirects->of_rank;
    const auto tee = read_streams(spec_of(OptionId::kTee), setting(OptionId::kTee));
    if (!tee) return fail(tee.error());
    output.tee = tee->all;
    output.tee_of = tee->of_rank;
    return {};
  }

  Result<void> find_command(const std::vector<std::string>& command) {
    if (command.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "no program was given; for example: ddprun --nproc-per-node=2 train.py");
    }
    auto found = find_program(command, environment_, surroundings_.places);
    if (!found) return fail(found.error());
    plan_.job.program = std::move(found->program);
    plan_.notes.push_back("program " + plan_.job.program.name + " found " + found->how);
    return {};
  }

  const Environment& environment_;
  const Surroundings& surroundings_;
  Plan plan_;
};

}  // namespace

Result<Plan> make_plan(const Settings& settings, const std::vector<std::string>& command,
                       const Environment& environment, const Surroundings& surroundings) {
  return Planner(settings, environment, surroundings).make(command);
}

Result<void> prepare_log_dir(const Plan& plan) {
  const std::string& directory = plan.job.output.log_dir;
  if (directory.empty() || directory == "/dev/null") return {};
  const auto unusable = [&](int error_number) {
    const Setting& setting = plan.settings[OptionId::kLogDir];
    return fail(
        wrong(spec_of(OptionId::kLogDir), setting,
              "log files cannot be written there: " + std::string(std::strerror(error_number))));
  };
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return unusable(error.value());
  // The permission bits do not tell about read-only and pseudo file systems; making a folder does.
  std::string probe = directory + "/.ddprun_XXXXXX";
  if (::mkdtemp(probe.data()) == nullptr) return unusable(errno);
  ::rmdir(probe.c_str());
  return {};
}

}  // namespace ddprun::cli
