#include "worker_lib/src/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "worker_lib/src/files.h"
#include "worker_lib/src/safetensors.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

bool is_checkpoint_name(const std::string& name) {
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end() - kSuffix.size(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path, int keep_last)
    : path_(std::move(path)), keep_last_(keep_last) {
  assert(keep_last >= 1);
}

Result<void> CheckpointFolder::prepare() {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    return fail(ErrorCode::kPermissionDenied,
                "the checkpoint folder " + path_ + " cannot be created: " + error.message());
  }
  if (!fs::is_directory(path_, error)) {
    return fail(ErrorCode::kInvalidArgument, "the checkpoint folder " + path_ + " is not a folder");
  }
  if (::access(path_.c_str(), W_OK | X_OK) != 0) {
    return fail(error_from_errno(errno, "the checkpoint folder " + path_ + " cannot be written"));
  }
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kUnfinishedSuffix)) {
      std::error_code ignored;
      fs::remove(entry.path(), ignored);
    }
  }
  return {};
}

Result<void> CheckpointFolder::write(std::int64_t step, std::string_view bytes) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%012lld.safetensors", static_cast<long long>(step));
  if (auto ok = write_file_atomically((fs::path(path_) / name).string(), bytes); !ok) return ok;

  const std::vector<std::string> paths = newest_first();
  for (std::size_t i = static_cast<std::size_t>(keep_last_); i < paths.size(); ++i) {
    std::error_code ignored;
    fs::remove(paths[i], ignored);
  }
  return {};
}

Result<CheckpointFolder::Search> CheckpointFolder::newest_whole() {
  Search search;
  std::vector<std::string> damaged;
  std::string reasons;
  for (const std::string& path : newest_first()) {
    auto bytes = read_file(path);
    if (!bytes) return fail(std::move(bytes.error()));
    const auto content = safetensors::unpack(*bytes);
    if (content) {
      search.found = Found{path, std::move(*bytes)};
      break;
    }
    damaged.push_back(path);
    reasons += (reasons.empty() ? "" : "; ") + path + ": " + content.error().message;
    search.warnings.push_back("the checkpoint " + path + " is damaged (" + content.error().message +
                              "): set aside as .damaged, going on with the one before it");
  }
  if (!search.found && !damaged.empty()) {
    // They stay where they are: a restarted group must not take their absence for a fresh start.
    return fail(ErrorCode::kDataLoss,
                "no checkpoint in " + path_ + " is whole (" + reasons +
                    "); remove them, or name another folder, to train from the beginning");
  }
  for (const std::string& path : damaged) {
    std::error_code ignored;
    fs::rename(path, path + ".damaged", ignored);
  }
  return search;
}

std::vector<std::string> CheckpointFolder::newest_first() const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    if (is_checkpoint_name(entry.path().filename().string())) names.push_back(entry.path());
  }
  // Twelve digits: the order of the names is that of the steps.
  std::sort(names.rbegin(), names.rend());
  return names;
}

}  // namespace ddprun
