#include "worker_lib/src/nccl_module.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>

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

NcclBackendMaker find_maker() {
  load_torch_cuda();
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string places[] = {(program / "../lib" / kModule).string(),
                                (program / kModule).string(), kModule};
  std::string reasons;
  for (const std::string& place : places) {
    void* module = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module == nullptr) {
      reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
      continue;
    }
    if (void* maker = dlsym(module, kNcclBackendMaker)) {
      return reinterpret_cast<NcclBackendMaker>(maker);
    }
    reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
  }
  throw Failure(ErrorCode::kNotFound,
                std::string("the CUDA part of worker_lib, ") + kModule +
                    ", cannot be loaded: it is built when the headers of CUDA and NCCL are there "
                    "(torch installed with its dependencies); use --backend gloo meanwhile (" +
                    reasons + ")");
}

NcclBackendMaker maker() {
  static const NcclBackendMaker found = find_maker();
  return found;
}

}  // namespace

void load_nccl_module() { maker(); }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size,
                                                    std::chrono::milliseconds timeout) {
  return c10::intrusive_ptr<c10d::Backend>::reclaim(
      maker()(store.get(), rank, size, timeout.count()));
}

}  // namespace ddprun
