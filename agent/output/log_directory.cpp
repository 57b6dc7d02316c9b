#include "agent/output/log_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace ddprun::agent {
namespace {

Result<std::string> make_unique_directory(std::string prefix) {
  std::string path = std::move(prefix) + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    return fail(error_from_errno(errno, "cannot make the log directory " + path));
  }
  return path;
}

}  // namespace

Result<std::string> make_log_directory(const std::string& log_dir,
                                       const std::string& temporary_directory,
                                       const std::string& run_id) {
  std::string root = log_dir;
  if (log_dir.empty()) {
    auto made = make_unique_directory(temporary_directory + "/torchelastic_");
    if (!made) return fail(std::move(made.error()).with("hint", "set TMPDIR or give --log-dir"));
    root = *made;
  } else {
    std::error_code error;
    std::filesystem::create_directories(root, error);
    if (error) {
      return fail(error_from_errno(error.value(), "cannot make the log directory " + root)
                      .with("option", "--log-dir"));
    }
  }
  std::string name = run_id;
  std::replace(name.begin(), name.end(), '/', '_');
  auto made = make_unique_directory(root + "/" + name + "_");
  if (!made) return fail(std::move(made.error()).with("option", "--log-dir"));
  return made;
}

Result<void> make_folders(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
      return fail(error_from_errno(errno, "cannot make the log directory " + path));
    }
  }
  return {};
}

std::string LogDirectory::path_of(std::uint64_t round) const {
  return path_.empty() ? "" : path_ + "/attempt_" + std::to_string(round);
}

std::string LogDirectory::path_of(std::uint64_t round, int local_rank) const {
  return path_.empty() ? "" : path_of(round) + "/" + std::to_string(local_rank);
}

}  // namespace ddprun::agent
