#include "agent/python/python_archives.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun::agent {

bool wants_python_hooks(const Job& job) {
  return job.program.is_python && value_or_empty(job.environment, "DDPRUN_PYTHON_HOOKS") != "0";
}

Result<rdzv::UniqueFd> file_in_memory(const char* name, std::string_view bytes) {
  rdzv::UniqueFd file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<ssize_t>(bytes.size());
  if (!file || ::pwrite(file.get(), bytes.data(), bytes.size(), 0) != size ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) !=
          0) {
    return fail(error_from_errno(errno, std::string("memory for ") + name));
  }
  return file;
}

void put_first_on_python_path(ChildEnvironment& environment, int archive) {
  const std::string own = "/proc/self/fd/" + std::to_string(archive);
  const std::string path = environment.value_or_empty("PYTHONPATH");
  // An empty entry would be the current folder.
  environment.set("PYTHONPATH", path.empty() ? own : own + ":" + path);
}

}  // namespace ddprun::agent
