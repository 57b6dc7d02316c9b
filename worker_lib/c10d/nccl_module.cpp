#include "worker_lib/c10d/nccl_module.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "ddprun/devices.h"
#include "ddprun/error.h"

namespace ddprun {
namespace {

constexpr const char* kModule = "libddprun_nccl.so";
// It has ncclCommRevoke, and mends hangs and errors that aborts leave in the versions before.
constexpr int kFirstThatEndsCalls = 22809;
constexpr int kFirstWithNvls = 9;  // generation of GPUs

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Once loaded from where this program's LibTorch lies, it is found by its name when the module asks
// for it, which therefore need not know that place. Returns why it cannot be loaded; empty where there is
// none, which loading the module says.
std::string load_torch_cuda() {
  Dl_info torch{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &torch) == 0) return {};
  const auto library = std::filesystem::path(torch.dli_fname).parent_path() / "libtorch_cuda.so";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const std::string why = dlerror();
  std::error_code ignored;
  return std::filesystem::exists(library, ignored) ? why : std::string();
}

bool load_early() {
  if (may_see_gpus("/dev", std::getenv("CUDA_VISIBLE_DEVICES"))) load_torch_cuda();
  return true;
}
[[maybe_unused]] const bool is_loaded_early = load_early();

class Module {
 public:
  static const Module& loaded() {
    static const Module module;
    return module;
  }

  NcclBackendMaker make = nullptr;
  GpuChooser use_gpu = nullptr;
  GenerationTeller generation = nullptr;
  VersionTeller versions = nullptr;
  MemoryTeller memory = nullptr;

 private:
  Module() {
    if (const std::string why = load_torch_cuda(); !why.empty()) {
      const bool is_nccl = why.find("nccl") != std::string::npos;
      throw UsageError(std::string(is_nccl
                                       ? "NCCL is missing, or is not the one that LibTorch needs"
                                       : "LibTorch's CUDA part cannot be loaded") +
                       ": install torch with all packages that it asks for (pip check names what "
                       "is missing), or use the backend gloo to train on the CPU (" +
                       why + ")");
    }
    std::error_code ignored;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    const std::string places[] = {(program / "../lib" / kModule).string(),
                                  (program / kModule).string(), kModule};
    std::string reasons;
    for (const std::string& place : places) {
      void* module = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
      if (module != nullptr && find(module, kNcclBackendMaker, make) &&
          find(module, kGpuChooser, use_gpu) && find(module, kGenerationTeller, generation) &&
          find(module, kVersionTeller, versions) && find(module, kMemoryTeller, memory)) {
        return;
      }
      reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
    }
    throw Failure(ErrorCode::kNotFound,
                  std::string("the CUDA part of worker_lib, ") + kModule +
                      ", cannot be loaded: it is built when the headers of CUDA and NCCL are there "
                      "(torch installed with its dependencies); use the backend gloo meanwhile (" +
                      reasons + ")");
  }

  template <typename Function>
  static bool find(void* module, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(module, name));
    return function != nullptr;
  }
};

}  // namespace

bool may_see_gpus(const char* folder, const char* visible) {
  const std::string_view shown = visible == nullptr ? "all" : visible;
  if (shown.empty() || shown.starts_with('-')) return false;
  // The second is Windows' own, for Linux programs under it.
  return std::ranges::any_of(
      std::initializer_list<const char*>{"nvidiactl", "dxg"}, [&](const char* name) {
        std::error_code ignored;
        return std::filesystem::exists(std::filesystem::path(folder) / name, ignored);
      });
}

void load_nccl_module() { Module::loaded(); }

std::string nccl_misfit(const CudaVersions& versions) {
  const auto major = [](int version) { return version / 10000; };
  if (versions.loaded_nccl == 0 || major(versions.loaded_nccl) == major(versions.nccl)) return {};
  return "the NCCL that is loaded is " + version_text(versions.loaded_nccl) + ", but " + kModule +
         " is built for " + version_text(versions.nccl) +
         ": install the NCCL that torch asks for, and remove another one from LD_LIBRARY_PATH and "
         "LD_PRELOAD";
}

void require_nccl() {
  const std::string misfit = nccl_misfit(Module::loaded().versions());
  if (!misfit.empty()) throw UsageError(misfit);
}

std::string driver_misfit(const CudaVersions& versions, int cuda_of_driver) {
  const auto text = [](int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  };
  if (cuda_of_driver == 0 || cuda_of_driver / 1000 >= versions.cuda / 1000) return {};
  return "the driver is too old for it, since it knows CUDA up to " + text(cuda_of_driver) +
         " and this LibTorch is built for CUDA " + text(versions.cuda) +
         ": install a newer driver, or a torch for the driver's CUDA; or use the backend gloo to "
         "train on the CPU";
}

void require_cuda(int gpus) {
  if (at::hasCUDA()) return;
  const std::string found = "the driver shows " + std::to_string(gpus) + " GPU" +
                            (gpus == 1 ? "" : "s") + ", but LibTorch can use none: ";
  // Without the real hooks it answers no to this too.
  if (!at::globalContext().hasCUDART()) {
    throw UsageError(found +
                     "it was asked about CUDA (torch::manual_seed does that) before libtorch_cuda "
                     "was loaded; make the Context first, or link libtorch_cuda");
  }
  const std::string misfit = driver_misfit(Module::loaded().versions(), cuda_of_driver());
  if (!misfit.empty()) throw UsageError(found + misfit);
  throw UsageError(
      found +
      "its CUDA does not run on them, most often because the driver is too old for it "
      "(nvidia-smi shows the newest CUDA that the driver knows); use the backend gloo to "
      "train on the CPU");
}

void use_gpu(int index) { Module::loaded().use_gpu(index); }

GpuMemory memory_of_gpu(int index) { return Module::loaded().memory(index); }

std::string why_not_replaced(const NcclFacts& facts) {
  const auto is_zero = [](const char* value) {
    return value != nullptr && value == std::string("0");
  };
  if (facts.version < kFirstThatEndsCalls) {
    return "its NCCL is " + version_text(facts.version) + ", and calls can be ended from " +
           version_text(kFirstThatEndsCalls) + " on: install a newer one";
  }
  if (facts.collnet != nullptr && !is_zero(facts.collnet)) {
    return "NCCL_COLLNET_ENABLE is set, and the switch's resources cannot be taken back from a "
           "dead "
           "rank: unset it";
  }
  if (facts.gpu_generation >= kFirstWithNvls && facts.has_several_ranks_on_node &&
      !is_zero(facts.nvls)) {
    return "NCCL may add up in the NVSwitch (NVLS), whose memory cannot be taken back from a dead "
           "rank: set NCCL_NVLS_ENABLE=0 when the job is started";
  }
  return {};
}

std::string why_not_replaced(int gpu, bool has_several_ranks_on_node) {
  const Module& module = Module::loaded();
  return why_not_replaced({.version = module.versions().loaded_nccl,
                           .gpu_generation = module.generation(gpu),
                           .has_several_ranks_on_node = has_several_ranks_on_node,
                           .collnet = std::getenv("NCCL_COLLNET_ENABLE"),
                           .nvls = std::getenv("NCCL_NVLS_ENABLE")});
}

void keep_pytorch_from_ending_survivors() {
  for (const auto& [name, value] : {std::pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
                                    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
                                    {"TORCH_NCCL_ENABLE_MONITORING", "0"},
                                    {"TORCH_NCCL_RETHROW_CUDA_ERRORS", "0"},
                                    {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1"}}) {
    ::setenv(name, value, /*replace=*/1);
  }
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const NcclGroup& group,
                                                    std::chrono::milliseconds timeout) {
  return c10::intrusive_ptr<c10d::Backend>::reclaim(
      Module::loaded().make(store.get(), group, timeout.count()));
}

}  // namespace ddprun
