#include "worker_lib/checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "worker_lib/checkpoint/safetensors.h"
#include "worker_lib/process/files.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kLatest = "latest.safetensors";
constexpr std::string_view kBest = "best.safetensors";

bool is_checkpoint_name(const std::string& name) {
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end() - kSuffix.size(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

// What a crash may have left of ours.
bool is_unfinished(const std::string& name) {
  return name.ends_with(kUnfinishedSuffix) &&
         (name.starts_with(kPrefix) || name.starts_with(kLatest) || name.starts_with(kBest));
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
    if (is_unfinished(entry.path().filename().string())) {
      std::error_code ignored;
      fs::remove(entry.path(), ignored);
    }
  }
  return {};
}

Result<CheckpointFolder::Warnings> CheckpointFolder::write(
    std::int64_t step, const std::vector<std::string_view>& pieces, bool is_best) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%012lld.safetensors", static_cast<long long>(step));
  const std::string written = place_of(name);
  if (auto ok = write_file_atomically(written, pieces); !ok) return fail(std::move(ok.error()));

  Warnings warnings;
  link(kLatest, written, warnings);
  if (is_best) link(kBest, written, warnings);

  std::error_code ignored;
  const fs::path latest = fs::read_symlink(place_of(kLatest), ignored);
  const fs::path best = fs::read_symlink(place_of(kBest), ignored);
  const auto paths = newest_first();
  if (!paths) return fail(paths.error());
  for (std::size_t i = static_cast<std::size_t>(keep_last_); i < paths->size(); ++i) {
    const std::string& path = (*paths)[i];
    const fs::path file = fs::path(path).filename();
    // The one just written is not among the last if another training left its files here, and
    // `latest` names another one if the disk had no place for a link.
    if (path == written || file == latest || file == best) continue;
    fs::remove(path, ignored);
  }
  return warnings;
}

Result<CheckpointFolder::Search> CheckpointFolder::newest_whole() {
  Search search;
  std::vector<std::string> damaged;
  std::string reasons;
  const auto paths = newest_first();
  if (!paths) return fail(paths.error());
  for (const std::string& path : *paths) {
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
  if (search.found) link(kLatest, search.found->path, search.warnings);
  if (std::error_code ignored; !has_best() && fs::is_symlink(place_of(kBest), ignored)) {
    fs::remove(place_of(kBest), ignored);  // it named one that was set aside
  }
  return search;
}

bool CheckpointFolder::has_best() const {
  std::error_code ignored;
  return fs::exists(place_of(kBest), ignored);
}

std::string CheckpointFolder::place_of(std::string_view name) const {
  return (fs::path(path_) / name).string();
}

// Relative, so that the folder can be moved.
void CheckpointFolder::link(std::string_view name, const std::string& path, Warnings& warnings) {
  const auto linked = link_atomically(place_of(name), fs::path(path).filename().string());
  if (linked || has_told_of_links_) return;
  has_told_of_links_ = true;
  warnings.push_back(
      linked.error().message +
      ": the checkpoints go without such names, and a best one is not kept longer than others");
}

Result<std::vector<std::string>> CheckpointFolder::newest_first() const {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(path_, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    if (is_checkpoint_name(at->path().filename().string())) names.push_back(at->path());
  }
  if (error) {
    return fail(error_from_errno(error.value(), "cannot list the checkpoint folder " + path_));
  }
  // Twelve digits: the order of the names is that of the steps.
  std::sort(names.rbegin(), names.rend());
  return names;
}

}  // namespace ddprun
