#include "worker_lib/c10d/nccl_module.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string_view>

#include "ddprun/error.h"

namespace ddprun {
namespace {

constexpr const char* kModule = "libddprun_nccl.so";

// Once loaded from where this program's LibTorch lies, it is found by its name when the module asks
// for it, which therefore need not know that place. Where there is none, loading the module says so.
void load_torch_cuda() {
  Dl_info torch{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &torch) == 0) return;
  const auto folder = std::filesystem::path(torch.dli_fname).parent_path();
  dlopen((folder / "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
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

 private:
  Module() {
    load_torch_cuda();
    std::error_code ignored;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    const std::string places[] = {(program / "../lib" / kModule).string(),
                                  (program / kModule).string(), kModule};
    std::string reasons;
    for (const std::string& place : places) {
      void* module = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
      if (module != nullptr && find(module, kNcclBackendMaker, make) &&
          find(module, kGpuChooser, use_gpu)) {
        return;
      }
      reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
    }
    throw Failure(ErrorCode::kNotFound,
                  std::string("the CUDA part of worker_lib, ") + kModule +
                      ", cannot be loaded: it is built when the headers of CUDA and NCCL are there "
                      "(torch installed with its dependencies); use --backend gloo meanwhile (" +
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
  throw UsageError(
      found +
      "its CUDA does not run on them, most often because the driver is too old for it "
      "(nvidia-smi shows the newest CUDA that the driver knows); use --backend gloo to "
      "train on the CPU");
}

void use_gpu(int index) { Module::loaded().use_gpu(index); }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const NcclPlace& place,
                                                    std::chrono::milliseconds timeout) {
  return c10::intrusive_ptr<c10d::Backend>::reclaim(
      Module::loaded().make(store.get(), place, timeout.count()));
}

}  // namespace ddprun
