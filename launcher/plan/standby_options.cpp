#include "launcher/plan/standby_options.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "agent/core/worker_environment.h"
#include "launcher/cli/text.h"
#include "launcher/machine/placement_files.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::cli {
namespace {

constexpr int kMost = 1024;
constexpr std::size_t kLengthMax = 32'768;  // the list goes to a process as one message

// PyTorch, and what a training imports of it later: the first optimizer imports torch._dynamo.
constexpr const char* kAlways[] = {"torch", "torch._dynamo", "torch.distributed",
                                   "torch.nn.parallel", "torch.utils.data"};

constexpr int kEntriesMax = 1000;  // of a script's folder, that are looked at
constexpr int kDepthMax = 2;

constexpr const char* kFrameworks[] = {"torch", "lightning", "accelerate", "transformers",
                                       "deepspeed"};

bool is_module_name(std::string_view name) {
  const auto is_part = [](std::string_view part) {
    const bool is_plain = std::ranges::all_of(part, [](unsigned char c) {
      return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') ||
             ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    });
    return is_plain && !part.empty() && (part.front() < '0' || part.front() > '9');
  };
  return std::ranges::all_of(split(name, '.'), is_part);
}

Result<std::vector<std::string>> read_modules(const ResolvedOption& option) {
  std::vector<std::string> modules(std::begin(kAlways), std::end(kAlways));
  if (option.text().empty()) return modules;
  if (option.text().size() > kLengthMax) return refused(option, "give less than 32 KiB");
  for (const std::string_view part : split(option.text(), ',')) {
    const std::string name(trimmed(part));
    if (!is_module_name(name)) {
      return refused(option, "give names of Python modules, such as transformers,accelerate");
    }
    if (std::ranges::count(modules, name) == 0) modules.push_back(name);
  }
  return modules;
}

bool has_gpu(const std::string& root) {
  return agent::is_there(root + "/dev/nvidiactl") || agent::is_there(root + "/dev/kfd");
}

// Empty: it can have them.
std::string why_none(const agent::Job& job, bool is_auto) {
  if (agent::worker_arguments(job.program, 0) != agent::worker_arguments(job.program, 1)) {
    return "the arguments differ between workers (${local_rank})";
  }
  if (!job.cpus_of.empty()) return "--numa-binding binds each worker before it starts";
  if (!job.visible_devices_of.empty()) return "--virtual-local-rank gives each worker its own GPU";
  if (is_auto && job.nodes.is_alone() && job.restarts.max_restarts == 0) {
    return "--max-restarts is 0";
  }
  return "";
}

// `environ[…] = …` and the like.
bool sets_variables(std::string_view text) {
  for (auto at = text.find("environ"); at != std::string_view::npos;
       at = text.find("environ", at + 1)) {
    std::string_view rest = text.substr(at + std::string_view("environ").size());
    if (rest.starts_with(".setdefault(") || rest.starts_with(".update(")) return true;
    if (!rest.starts_with('[')) continue;
    rest.remove_prefix(std::min(rest.find_first_of("]\n"), rest.size() - 1) + 1);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    if (rest.starts_with('=') && !rest.starts_with("==")) return true;
  }
  return false;
}

bool imports_torch(std::string_view text) {
  return std::ranges::any_of(kFrameworks, [text](const char* name) {
    return text.find(std::string("import ") + name) != std::string_view::npos ||
           text.find(std::string("from ") + name) != std::string_view::npos;
  });
}

// Whether a Python file beside the script, or in the folders up to two levels below, sets a variable: the script may
// import it. True, too, where the folder has more entries than are worth a look.
bool one_sets_variables(const std::filesystem::path& folder) {
  std::error_code error;
  int seen = 0;
  using Files = std::filesystem::recursive_directory_iterator;
  for (Files at(folder, error); !error && at != Files(); at.increment(error)) {
    if (++seen > kEntriesMax) return true;
    if (at.depth() == kDepthMax || at->path().filename().string().starts_with('.')) {
      at.disable_recursion_pending();
    }
    const bool is_python = at->path().extension() == ".py" && at->is_regular_file(error);
    if (is_python && sets_variables(file_text(at->path()))) return true;
  }
  return static_cast<bool>(error);
}

// Whether the first round's workers gain by it. A script that imports no PyTorch would wait for that in vain, and a program
// that sets what a module has read is executed anew (agent/README.md, "Standbys"): its first lines would run twice.
bool should_start_from_zygote(const agent::StandbySpec& spec, const agent::Job& job,
                              bool are_modules_named) {
  const std::vector<std::string>& words = job.program.argv;
  const std::size_t first = 1 + job.program.python_options;
  if (spec.wanted < job.local_world_size || words.size() <= first) return false;
  const std::filesystem::path script = words[first];
  std::error_code error;  // a pipe could be read only once
  if (words[first].starts_with('-') || !std::filesystem::is_regular_file(script, error)) {
    return are_modules_named;
  }
  const std::string text = file_text(script);
  if (!are_modules_named && !imports_torch(text)) return false;
  return !sets_variables(text) &&
         !one_sets_variables(std::filesystem::absolute(script).parent_path());
}

}  // namespace

Result<agent::StandbySpec> read_standbys(const Settings& settings, const agent::Job& job,
                                         const agent::Machine& machine) {
  const ResolvedOption option = resolved(settings, OptionId::kStandby);
  agent::StandbySpec spec;
  auto modules = read_modules(resolved(settings, OptionId::kPreload));
  if (!modules) return fail(std::move(modules.error()));
  if (option.text() == "off") return spec;
  const bool is_auto = option.text() == "auto";
  const auto number = is_auto ? Result<int>(job.local_world_size) : read_integer(option, 0, kMost);
  if (!number) return refused(option, "give off, auto, or how many are to wait, up to 1024");
  if (*number == 0) return spec;
  // A replacement is charged to the budget. How its arguments and its place differ is no obstacle: a
  // prepared standby belongs to one rank.
  // It has the model a second time in the memory of its GPU, where there may be no room: not unasked. Others do not
  // touch a GPU.
  spec.prepares = job.restarts.max_restarts > 0 && !(is_auto && has_gpu(machine.root));
  spec.why_none = why_none(job, is_auto);
  if (!spec.why_none.empty()) return spec;
  spec.wanted = *number;
  spec.is_program = !job.program.is_python;
  if (spec.is_program) return spec;
  spec.modules = std::move(*modules);
  spec.starts_first = should_start_from_zygote(
      spec, job, /*are_modules_named=*/!resolved(settings, OptionId::kPreload).text().empty());
  return spec;
}

}  // namespace ddprun::cli
